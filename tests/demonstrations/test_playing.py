"""Environments speak for a team, and what they say is imitated after the team's own prompts."""

from __future__ import annotations

import importlib
import json

import pytest

from rolecall.config.registry import BUILT_IN
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.demonstrator import Demonstrator
from rolecall.setup.build import build
from rolecall.setup.open_environment import DEMONSTRATORS
from rolecall.setup.plan import load_plan
from tests.cli.test_cli import rolecall
from tests.sandbox.places import working_sandbox
from tests.toy import write

pytestmark = pytest.mark.slow


def config(model_folder, workflow, environment, team) -> dict:
    agents = {
        name: {"policy": "p", "sampling": {"max_tokens": 8}, **options}
        for name, options in team.items()
    }
    return {
        "team": agents,
        "policies": {"p": {"base": str(model_folder), "optimizer": {"lr": 1e-3}}},
        "workflow": workflow,
        "environment": environment,
        "algorithm": {"name": "sft"},
        "rollout": {"groups": 4, "group_size": 1, "data": "environment"},
        "trainer": {"steps": 3},
        "evaluation": {"tasks": 0},
    }


DEBATER, VERIFIER = {"role": "debater"}, {"role": "verifier"}
MATH = {"name": "math", "level": 1}
TOOLS = {"tools": {"use": ["calculator"], "format": "tags"}}
ORDERS = {"tools": {"use": ["world", "calculator"], "format": "tags"}}
CASES = {
    "solver and verifier": ("solver_verifier", MATH, {"solver": {}, "verifier": {}}),
    "two verifiers": (
        "solver_verifier", MATH, {"solver": {}, "ann": VERIFIER, "ben": VERIFIER},
    ),
    "one solver": ("single", MATH, {"solver": {}}),
    "a marked answer": ("single", {**MATH, "answer": "marked"}, {"solver": {}}),
    "the last number": ("single", {**MATH, "answer": "last"}, {"solver": {}}),
    "calculator": ("single", MATH, {"solver": TOOLS}),
    "debate": (
        "majority_vote", MATH, {n: {"role": "debater"} for n in ("ann", "ben", "eva")},
    ),
    "orders": ("single", {"name": "tool_use"}, {"solver": ORDERS}),
    "search team": (
        "search_team", {"name": "search"}, {"verifier": {}, "searcher": {}, "answerer": {}},
    ),
    "search alone": ("multi_turn", {"name": "search"}, {"actor": {}}),
}  # fmt: skip


def groups_of(model_folder, tmp_path, case):
    file = write(tmp_path / "c.yaml", config(model_folder, *case))
    run = build(load_plan(file, []))
    return run, run.data


@pytest.mark.parametrize("name", CASES)
def test_a_team_is_shown_as_many_turns_as_it_trains(name, model_folder, tmp_path):
    run, groups = groups_of(model_folder, tmp_path, CASES[name])
    assert len(groups) == 12
    for [episode] in groups:
        [turn] = episode.turns
        agent = run.context.agents[turn.agent]
        text = agent.policy.tokenizer.decode(turn.tokens, skip_special_tokens=True)
        assert text == turn.text
        assert turn.tokens[-1] == agent.policy.tokenizer.eos_token_id
        turn.finish = "stop"
        if name != "orders" and agent.parser is not None and "<tool_call>" not in turn.text:
            assert agent.parser(turn) is not None, turn.text


def test_a_verifier_learns_to_reject_what_nobody_imitates(model_folder, tmp_path):
    case = CASES["solver and verifier"]
    file = write(tmp_path / "c.yaml", config(model_folder, *case))
    groups = build(load_plan(file, ["trainer.steps=20"])).data
    turns = [episode.turns[0] for [episode] in groups]
    verdicts = [turn.text.rpartition("<verify>")[2] for turn in turns if turn.agent == "verifier"]
    assert 0.1 < verdicts.count("reject</verify>") / len(verdicts) < 0.6
    truths = {}  # what the solver is shown to say is right
    for turn in turns:
        if turn.agent == "solver":
            truths.setdefault(turn.task.rpartition("-")[0], set()).add(turn.text)
    assert all(len(texts) == 1 for texts in truths.values())


def test_the_same_seed_writes_the_same(model_folder, tmp_path):
    texts = [
        [
            episode.turns[0].text
            for [episode] in groups_of(model_folder, tmp_path, CASES["debate"])[1]
        ]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


def test_a_coder_and_a_tester_are_shown_programs_and_tests(model_folder, tmp_path):
    working_sandbox()
    case = (
        "coder_tester",
        {"name": "code", "level": 1, "packages": False},
        {"coder": {}, "tester": {}},
    )
    file = write(tmp_path / "c.yaml", config(model_folder, *case))
    groups = build(load_plan(file, ["trainer.steps=1"])).data
    texts = {episode.turns[0].agent: episode.turns[0].text for [episode] in groups}
    assert texts["coder"].startswith("```python\n")
    assert texts["tester"].startswith("<tests>\n")


def test_rows_of_a_data_set_are_shown_with_their_solutions(model_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    solution = "He sells 48/2 = <<48/2=24>>24 clips.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"
    made = [{"question": f"Question {n}?", "answer": solution} for n in range(20)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in made))
    environment = {"name": "math", "train": str(rows), "test": str(rows)}
    _, groups = groups_of(model_folder, tmp_path, ("single", environment, {"solver": {}}))
    assert groups[0][0].turns[0].text == (
        "He sells 48/2 = 24 clips. In all 48+24 = 72. \\boxed{72}"
    )


def test_the_list_of_environments_is_that_of_those_that_write():
    writing = []
    for name, place in BUILT_IN["environment"].items():
        module, _, attribute = place.partition(":")
        if issubclass(getattr(importlib.import_module(module), attribute), Demonstrator):
            writing.append(name)
    assert sorted(writing) == sorted(DEMONSTRATORS)


@pytest.mark.parametrize(
    ("workflow", "environment", "team", "says"),
    [
        ("debate", {"name": "debate"}, {"a": DEBATER, "b": DEBATER, "judge": {}},
         "these do: code, math, search, tool_use"),
        ("single", MATH, {"solver": {"tools": ["calculator"]}}, "write tags"),
        ("mathchat", MATH, {"solver": {}, "executor": {}, "verifier": {}}, "majority_vote"),
        ("single", {"name": "tool_use"}, {"solver": TOOLS}, "world"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_told_in_one_line(
    workflow, environment, team, says, model_folder, tmp_path
):
    file = write(tmp_path / "c.yaml", config(model_folder, workflow, environment, team))
    with pytest.raises(ConfigError) as error:
        build(load_plan(file, []))
    assert says in str(error.value)


def test_a_run_with_a_warm_start_has_both_stages(model_folder, tmp_path, capsys):
    made = config(model_folder, *CASES["solver and verifier"])
    made |= {"algorithm": {"name": "grpo"}, "rollout": {"groups": 2, "group_size": 2}}
    made["trainer"] = {
        "steps": 1,
        "warm_start": {"steps": 6, "rows": 8, "lr": 1e-2},
        "idle_steps": 5,
    }
    made["rewards"] = {"correct": 1.0, "format": 0.5}
    file = write(tmp_path / "c.yaml", made)
    run = tmp_path / "run"
    rolecall("train", file, "--output", run, capsys=capsys)
    records = [
        json.loads(line) for line in (run / "warm_start/metrics.jsonl").read_text().splitlines()
    ]
    losses = [r["agent/solver/loss"] for r in records if r["kind"] == "step"]
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
    assert (run / "train/metrics.jsonl").is_file()
