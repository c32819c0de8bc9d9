"""Makes a config of ours from a script or YAML of MARTI's first version or its coaching fork."""

from __future__ import annotations

import math

from rolecall.importers.hydra import follower
from rolecall.importers.keys import Framework, Given, Tree, set_key
from rolecall.importers.marti import DIFFERS, build_work, count_answers, tidy
from rolecall.importers.marti_algorithm import build_algorithm
from rolecall.importers.marti_flows import TOOLS
from rolecall.importers.marti_run import (
    set_amounts,
    set_evaluation,
    set_policies,
    set_prompt_limit,
    set_rows,
    set_trackers,
)
from rolecall.importers.marti_team import build_team
from rolecall.importers.marti_tools import check_turns
from rolecall.importers.marti_v1_keys import KEYS

MARKS = ("marti.cli.commands", "default_agent.", "default_agent:", "agent_workflow:",
         "agent_workflow=", "workflow_args:", "marti/worlds")  # fmt: skip
SCHEDULE = "cosine"  # theirs, which no key changes


def build(given: Given) -> Tree:
    """Agents with weights of their own unless they are shared, in one of our workflows."""
    config: Tree = {"team": {}, "policies": {}}
    flow = build_team(given, config)
    task = str(given["verify_task"])
    build_work(given, config, flow, task=task, spelt="verify_task")
    if flow is not None:
        check_turns(given, flow)
    if flow is not TOOLS and not (given["is_reasoning_model"] and given["enable_thinking"]):
        given.silence(["enable_thinking"], "only reasoning models and the tool workflow read it")
    if not given["apply_chat_template"]:
        given.silence(["add_think_token"], "it is added with apply_chat_template alone")
    if given["stratified_sampling"]:
        set_key(config, "rollout.stratify", "proportional")
        if config.get("environment", {}).get("name") == "data_science":
            set_key(config, "environment.by_type", True)
    set_rows(given, config, test=None)
    build_algorithm(given, config)
    set_policies(given, config, schedule=SCHEDULE)
    answers = count_answers(given, config, flow)
    warmup = given["lr_warmup_steps"]
    if warmup is not None:
        warmup = math.ceil(warmup)
        given.silence(["lr_warmup_ratio"], "lr_warmup_steps says it")
    set_amounts(given, config, answers=answers, warmup=warmup)
    # vLLM cuts the prompts of an asynchronous workflow, and keeps their end.
    set_prompt_limit(given, config, side="left" if given["async_workflow"] else "right")
    _set_tests(given, config)
    set_trackers(given, config)
    return config


def _set_tests(given: Given, config: Tree) -> None:
    """Each engine evaluates all tasks as often as is asked for; temperature 0 is greedy."""
    temperature = given["eval_temperature"]
    samples = given["n_eval_samples_per_prompt"] * max(1, given["vllm_num_engines"])
    if temperature == 0:
        given.placed["eval_temperature"] = "evaluation.greedy"
        set_evaluation(given, config, samples=1, sampling={}, greedy=True)
    else:
        set_evaluation(given, config, samples=samples, sampling={"temperature": temperature})


FRAMEWORK = Framework(
    name="marti_v1",
    title="MARTI 1",
    marks=(
        "marti.cli.commands",
        "default_agent",
        "agent_workflow",
        "marti/worlds",
        "workflow_args",
    ),
    own_marks=("marti.cli.commands", "default_agent", "agent_workflow:", "marti/worlds"),
    keys=KEYS,
    build=build,
    differs=DIFFERS,
    tidy=tidy,
    follow=follower(KEYS, folder="marti/cli/configs", base="default"),
)
