"""Makes a config of ours from a script of MARTI's second version."""

from __future__ import annotations

import copy

from rolecall.core.json_types import JsonObject
from rolecall.importers.keys import Framework, Given, Tree, set_key
from rolecall.importers.marti_algorithm import build_algorithm, build_correction, build_rewards
from rolecall.importers.marti_flows import DEBATE, TREE, WITH_MEMORY, Flow
from rolecall.importers.marti_judge import build_reviews
from rolecall.importers.marti_keys import KEYS
from rolecall.importers.marti_run import (
    set_amounts,
    set_evaluation,
    set_policies,
    set_prompt_limit,
    set_rows,
    set_trackers,
)
from rolecall.importers.marti_team import build_team
from rolecall.importers.marti_tools import build_environment, build_tools

MAPPINGS = ("workflow_args", "tools_config", "reward_alloc")
SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine",
             "cosine_with_min_lr": "cosine", "constant_with_warmup": "constant"}  # fmt: skip
ROUNDS = 4  # of the experience workflows, unless a file says otherwise
LEAST_RATE = 0.1  # of its peak, at which cosine_with_min_lr ends there
MARKS = ("multi_agent_train_ppo_ray", "--workflow_func_path", "--workflow_args", "--agents",
         "--default_agent")  # fmt: skip
DIFFERS = (
    "Agents have a system prompt, and messages of the workflow say the task and what teammates "
    "said; there a template holds both. A variable within a line of a template stands as its name "
    "in brackets. Prompts in the code of a workflow there are ours here.",
    "group_norm is `drmas`, which divides by the spread of an agent's attempts at a task; version "
    "1 whitens over all tokens of an agent's batch after that, too.",
    "GSPO with REINFORCE's advantages centres turns over all agents of a step, each turn once; "
    "there each agent by itself, over its tokens.",
    "The learning rate falls to 0 along the cosine, there to a tenth.",
    "A judge of reviews is shown the whole task, there 300 characters of it, and a review earns at "
    "least 0 by its rating.",
)


def tidy(values: JsonObject) -> JsonObject:
    """Return the values with `default_agent.seed` and the keys of mappings as keys of their own.

    What is said of the default agent counts.
    """
    everybody: JsonObject = {}
    others: JsonObject = {}
    for key, value in values.items():
        if key == "default_agent" and isinstance(value, dict):
            everybody |= value
        elif key.startswith("default_agent."):
            everybody[key.removeprefix("default_agent.")] = value
        else:
            others[key] = value
    settings: JsonObject = {}
    for name, value in (others | everybody).items():
        if name in MAPPINGS and isinstance(value, dict):
            settings |= {f"{name}.{inner_key}": inner for inner_key, inner in value.items()}
        elif name.startswith("tools_config.tools."):
            tools = copy.deepcopy(settings.get("tools_config.tools") or {})
            set_key(tools, name.removeprefix("tools_config.tools."), value)
            settings["tools_config.tools"] = tools
        else:
            settings[name] = value
    return settings


def build(given: Given) -> Tree:
    """Agents with weights of their own unless they are shared, in one of our workflows."""
    config: Tree = {"team": {}, "policies": {}}
    flow = build_team(given, config)
    task = str(given["workflow_args.task"])
    build_work(given, config, flow, task=task, spelt="workflow_args.task")
    set_rows(given, config, test=given["eval_dataset"])
    if given["eval_dataset"] is not None:
        given.silence(["extra_eval_tasks", "extra_eval_dir"], "eval_dataset says what is evaluated")
    build_algorithm(given, config)
    build_correction(given, config)
    low, high = given["eps_clip_low_high"] or [given["eps_clip"]] * 2
    set_key(config, "algorithm.clip_low", low)
    set_key(config, "algorithm.clip_high", high)
    schedule = given.choose("lr_scheduler", SCHEDULES, "no such schedule")
    least = LEAST_RATE if given["lr_scheduler"] == "cosine_with_min_lr" else 0.0
    set_policies(given, config, schedule=schedule or "constant", min_lr_ratio=least)
    set_amounts(given, config, answers=count_answers(given, config, flow))
    set_prompt_limit(given, config, side="left")
    sampling = {
        "temperature": given["eval_temperature"],
        "max_tokens": given["eval_generate_max_len"],
    }
    samples = given["eval_n_samples_per_prompt"]
    set_evaluation(given, config, samples=samples, sampling=sampling)
    set_trackers(given, config)
    if given["async_train"]:
        set_key(config, "trainer.max_staleness", 1)
        set_key(config, "engine.separate_weights", True)
    return config


def build_work(given: Given, config: Tree, flow: Flow | None, *, task: str, spelt: str) -> None:
    """Set the environment, the tools and the rewards of a known workflow."""
    if flow is not None and flow.judged:
        build_reviews(given, config)
        build_tools(given, config, flow)
    elif flow is not None:
        build_environment(given, config, flow, task=task, spelt=spelt)
        build_tools(given, config, flow)
        build_rewards(given, config, flow)


def count_answers(given: Given, config: Tree, flow: Flow | None) -> int:
    """Return how many answers an agent gives in an episode: those of a debate's rounds, and about
    its share of a tree. One agent that is solver and memory speaks for both.
    """
    if flow is TREE:
        return max(1, (given["workflow_args.max_num_nodes"] or 1) // max(1, len(config["team"])))
    rounds: int | None = given["workflow_args.num_rounds"]
    if flow in WITH_MEMORY:
        attempts = rounds or ROUNDS
        return 2 * attempts - 1 if len(config["policies"]) == 1 else attempts
    return (rounds or len(config["team"]) or 1) if flow is DEBATE else 1


FRAMEWORK = Framework(
    name="marti",
    title="MARTI",
    marks=("openrlhf", *MARKS),
    own_marks=MARKS,
    keys=KEYS,
    build=build,
    differs=DIFFERS,
    tidy=tidy,
)
