"""Translates the rows, amounts, evaluations and trackers of a run of MARTI, of both versions."""

from __future__ import annotations

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import (
    Given,
    Tree,
    get_key,
    is_unknown,
    set_key,
    set_truncation,
    show_value,
    trained_policies,
)
from rolecall.importers.marti_keys import NEVER, PROMPTS, QUESTIONS, TRUTHS


def set_rows(given: Given, config: Tree, *, test: JsonValue) -> None:
    """Set the files of rows; `json@FOLDER` is a folder of files."""
    if test is None:
        test = _extra_tests(given)
    for value, split in ((given["prompt_data"], "train"), (test, "test")):
        if value is None or is_unknown(value):
            given.mark_missing(config, f"environment.{split}", f"rows, {show_value(value)} there")
        else:
            rows = value if isinstance(value, list) else str(value).split(",")
            rows = [str(row).rpartition("@")[2].strip() for row in rows]
            set_key(config, f"environment.{split}", rows[0] if len(rows) == 1 else rows)
    _set_shares(given, config)
    _set_columns(given, config)


def _set_shares(given: Given, config: Tree) -> None:
    """Divide a step's tasks among several files of rows."""
    key, rows = "prompt_data_probs", get_key(config, "environment.train")
    probs = given.get(key)
    listed = probs if isinstance(probs, list) else str(probs).split(",")
    if probs is None or not isinstance(rows, list):
        given.silence([key], "all rows are of one file")
    elif len({str(prob).strip() for prob in listed}) == 1:
        set_key(config, "rollout.stratify", "equal")
    else:
        given.refuse(key, "write environment: mixed, which has a weight for each of its parts")


def _set_columns(given: Given, config: Tree) -> None:
    """Name columns that are not found by their names; `label`, their default, is said to be one to
    rename.
    """
    if get_key(config, "environment.question") is not None:  # the environment names its columns
        return
    can_name = get_key(config, "environment.name") in ("math", "search")
    for key, ours, names in (
        ("input_key", "question", QUESTIONS),
        ("label_key", "answer", (*TRUTHS, None, "label")),
    ):
        if given[key] in names:
            continue
        if can_name:
            set_key(config, f"environment.columns.{ours}", given[key])
            given.placed[key] = f"environment.columns.{ours}"
        else:
            given.refuse(key, f"columns are {given.keys[key].because}; rename yours")
    if given["label_key"] == "label":
        given.notes["label_key"] = "rename the column label: answer"


def _extra_tests(given: Given) -> list[JsonValue] | None:
    folder, names = given["extra_eval_dir"], given["extra_eval_tasks"]
    if not names or folder is None or is_unknown(folder):
        return None
    listed = names if isinstance(names, list) else [names]
    return [f"{folder}/{name}.json" for name in listed]


def set_policies(given: Given, config: Tree, *, schedule: str, min_lr_ratio: float = 0.0) -> None:
    """Set how the weights of trained policies are stored and updated."""
    for name in trained_policies(config):
        config["policies"][name]["optimizer"] = {"schedule": schedule}
        if min_lr_ratio:
            config["policies"][name]["optimizer"]["min_lr_ratio"] = min_lr_ratio
        if given["lora_rank"]:
            config["policies"][name]["adapter"] = {
                "rank": given["lora_rank"],
                "alpha": given["lora_alpha"],
                "targets": given["target_modules"],
            }
    if not given["lora_rank"]:
        given.silence(["lora_alpha", "target_modules", "lora_dropout"], "lora_rank is 0")
    if given["bf16"]:
        set_key(config, "learner.dtype", "bfloat16")


def set_prompt_limit(given: Given, config: Tree, *, side: str) -> None:
    """Cut long prompts where the file asks for it. `side`: where that version removes tokens."""
    if given["truncate_prompt"]:
        set_truncation(config, max_tokens=given["prompt_max_len"], side=side)
    else:
        given.silence(["prompt_max_len", "truncate_prompt"], PROMPTS)


def set_amounts(given: Given, config: Tree, *, answers: int, warmup: int | None = None) -> None:
    """Translate the length of the run, its optimizer steps, and the warm-up.

    answers: of an agent in an episode, each a sample there; warmup: its optimizer steps, if they
        are given as a number.
    """
    episodes = given["rollout_batch_size"] * given["n_samples_per_prompt"] * answers
    batch = given["train_batch_size"]
    minibatches = max(1, episodes // batch)
    set_key(config, "algorithm.minibatches", minibatches)
    if episodes % batch and episodes > batch:
        given.refuse("train_batch_size", f"{episodes} turns are not batches of {batch}")
    elif episodes < batch:
        given.refuse("train_batch_size", f"a step has {episodes} turns only")
    _set_length(given, config)
    for name in trained_policies(config):
        if warmup:
            set_key(config, f"policies.{name}.optimizer.warmup_steps", warmup)
        elif warmup is None and given["lr_warmup_ratio"]:
            key = f"policies.{name}.optimizer.warmup_ratio"
            set_key(config, key, given["lr_warmup_ratio"])


def _set_length(given: Given, config: Tree) -> None:
    """Set the length of the run, and how many of the tasks it trains on."""
    if given.steps:
        set_key(config, "trainer.steps", given.steps)
        given.silence(["num_episodes"], "trainer.steps says it")
    else:
        set_key(config, "trainer.epochs", given["num_episodes"])
    most = given["max_samples"]
    if most is not None and most < NEVER:
        set_key(config, "rollout.max_tasks", int(most))
    else:
        given.silence(["max_samples"], "more than there are rows")


def set_evaluation(
    given: Given, config: Tree, *, samples: int, sampling: JsonObject, greedy: bool = False
) -> None:
    """Set how often evaluations run, and what they sample otherwise than training."""
    set_key(config, "evaluation.samples", samples)
    set_key(config, "evaluation.k", samples)
    set_key(config, "evaluation.tasks", NEVER)
    set_key(config, "evaluation.every", max(0, given["eval_steps"]))
    set_key(config, "trainer.save_every", given["save_steps"] if given["save_steps"] > 0 else NEVER)
    if greedy:
        set_key(config, "evaluation.greedy", True)
    for name, value in sampling.items():
        if value is not None:
            set_key(config, f"evaluation.sampling.{name}", value)
    for agent in config["team"].values() if given["top_k"] > 0 else []:
        set_key(agent, "sampling.top_k", given["top_k"])
    if given["top_p"] < 1 or given["top_k"] > 0:
        set_key(config, "rollout.allow_filtered_sampling", True)


def set_trackers(given: Given, config: Tree) -> None:
    """Set where metrics and turns are sent to."""
    trackers: list[JsonValue] = []
    if given["use_wandb"]:
        entity = given["wandb_org"]
        trackers.append(
            {"name": "wandb", "project": given["wandb_project"]}
            | ({"entity": entity} if entity else {})
        )
    else:
        given.silence(["use_wandb", "wandb_org", "wandb_project"], "use_wandb is not set")
    if given["use_tensorboard"]:
        trackers.append("tensorboard")
    if "use_weave" in given.keys and given["use_weave"]:
        project = given["weave_project"]
        trackers.append({"name": "weave"} | ({"project": project} if project else {}))
    elif "use_weave" in given.keys:
        given.silence(["use_weave", "weave_project"], "use_weave is not set")
    if trackers:
        config["trackers"] = trackers
