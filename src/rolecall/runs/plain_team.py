"""Makes the team that plays an environment where there is no config: `--model` and `--environment`.

It is one agent where the environment is for one; a debate and a game have as many as they need. No
agent is trained, so nothing is made that only training needs.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rolecall.config import registry
from rolecall.config.key_locations import KeyLocations
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject
from rolecall.runs.run_paths import is_run
from rolecall.setup.plan import Plan, load_plan

POLICY = "model"
SOLVE = "Solve the problem. Put the answer in \\boxed{}."
SEARCH = (
    "Answer the question: <answer>answer</answer>. You may search first: <search>words</search>."
)
MOST_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class PlainTeam:
    """The agents that play an environment, by name, and their workflow."""

    workflow: str
    agents: dict[str, JsonObject] = field(default_factory=dict)  # with keys of `team.NAME`


_DEBATER: JsonObject = {"role": "debater", "system": "Argue for your side, and win the debate."}
_JUDGE: JsonObject = {"system": "Who is right? Write <winner>a</winner> or <winner>b</winner>."}
_PLAYER: JsonObject = {"role": "player", "system": "Win the game."}
_WORKS: JsonObject = {"tools": {"use": ["world"], "format": "code"}}
_CALLS: JsonObject = {
    "system": "Answer the question: <answer>answer</answer>.",
    "tools": {"use": ["world", "calculator"], "format": "tags"},
}

TEAMS = {
    "code": PlainTeam("single", {"solver": {"system": "Write the program in a fenced block."}}),
    "data_science": PlainTeam("data_science", {
        "engineer": {**_WORKS, "system": "Prepare the data."},
        "modeler": {**_WORKS, "system": "Fit a model."},
        "analyst": {**_WORKS, "system": "Predict, and write submission.csv."},
    }),
    "debate": PlainTeam("debate", {
        "debater_1": _DEBATER, "debater_2": _DEBATER, "judge": _JUDGE,
    }),
    "games": PlainTeam("self_play", {"player_1": _PLAYER, "player_2": _PLAYER}),
    "math": PlainTeam("single", {"solver": {"system": SOLVE}}),
    "search": PlainTeam("multi_turn", {"actor": {"system": SEARCH}}),
    "tool_use": PlainTeam("single", {"solver": _CALLS}),
}  # fmt: skip
NEED_A_CONFIG = ("external", "mixed", "openenv", "pettingzoo", "remote")


def plan_team(
    environment: str, models: list[str], overrides: list[str], *, number: int | None
) -> Plan:
    """Return the plan of a model that plays an environment; `models` are MODEL or POLICY=MODEL.

    `number`: tasks to play. Raises ConfigError for what does not fit, without naming a file.
    """
    if not models:
        raise ConfigError("--environment: name the model that plays it: --model MODEL")
    config = _config(environment, number)
    with tempfile.TemporaryDirectory(prefix="rolecall-") as folder:
        file = Path(folder) / "team.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        try:
            plan = load_plan(file, [*add_bases(models), *overrides], is_trained=False)
        except ConfigError as error:
            begin = re.compile(rf"^({re.escape(str(file))}|team\.yaml)(:\d+)?: ")
            raise ConfigError(*(begin.sub("", one) for one in error.problems)) from error
    plan.config._locations = KeyLocations()  # the file is gone
    return plan


def add_bases(models: list[str]) -> list[str]:
    """Return the overrides that set the base of the one policy. Raises ConfigError."""
    chosen = {POLICY: ""}
    for model in models:
        name, equals, base = model.partition("=")
        if not equals:
            name, base = POLICY, model
        if name not in chosen:
            raise ConfigError(
                f"--model {model}: the only policy is {POLICY!r}; write --model MODEL"
            )
        check_base(base)
        chosen[name] = base
    return [f"policies.{POLICY}.base={json.dumps(chosen[POLICY])}"]


def check_base(model: str) -> None:
    """Check that a model is no run folder; raises ConfigError otherwise."""
    if is_run(Path(model)) and (Path(model) / "config.yaml").is_file():
        raise ConfigError(
            f"--model {model}: this is a run; write `rolecall eval {model}`, or the folder of a "
            f"policy in {model}/checkpoints"
        )


def _config(environment: str, number: int | None) -> JsonObject:
    if environment in NEED_A_CONFIG:
        raise ConfigError(
            f"--environment {environment}: it needs more than a name; write a config of it, and "
            "name that instead of --model"
        )
    kind = registry.resolve("environment", environment, key="--environment")
    lone = getattr(kind, "lone_workflow", "single")
    role = {"single": "solver", "multi_turn": "actor"}[lone]
    team = TEAMS.get(environment, PlainTeam(lone, {role: {}}))
    common = {"policy": POLICY, "sampling": {"max_tokens": MOST_TOKENS}, "trainable": False}
    tasks = 100 if number is None else number
    return {
        "team": {name: {**common, **keys} for name, keys in team.agents.items()},
        "policies": {POLICY: {}},
        "workflow": team.workflow,
        "environment": environment,
        "algorithm": "grpo",
        "rollout": {"groups": tasks, "group_size": 1},
        "evaluation": {"tasks": tasks, "samples": 1},
    }
