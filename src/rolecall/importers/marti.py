"""Makes a config of ours from a script or YAML of MARTI."""

from __future__ import annotations

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import (
    EDIT,
    Framework,
    Given,
    Tree,
    is_unknown,
    set_key,
    show_value,
    trained_policies,
)
from rolecall.importers.marti_keys import KEYS, NEVER
from rolecall.importers.marti_team import build_team, build_tools

MAPPINGS = ("workflow_args", "tools_config", "reward_alloc")
ESTIMATORS = {
    "gae": "ppo",
    "reinforce": "reinforce_pp",
    "reinforce_baseline": "reinforce_pp_baseline",
    "rloo": "rloo",
    "group_norm": "drmas",
}
CORRECTIONS = {
    ("token", "truncate"): "token_tis",
    ("sequence", "truncate"): "sequence_tis",
    ("token", "mask"): "token_mis",
    ("sequence", "mask"): "sequence_mis",
    ("geometric", "mask"): "geometric_mis",
}
SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine",
             "cosine_with_min_lr": "cosine", "constant_with_warmup": "constant"}  # fmt: skip


def tidy(values: JsonObject) -> JsonObject:
    """Return the values with `default_agent.seed` and the keys of mappings as keys of their own."""
    settings: JsonObject = {}
    for key, value in values.items():
        name = key.removeprefix("default_agent.")
        if key == "default_agent" and isinstance(value, dict):
            settings = value | settings
        elif name in MAPPINGS and isinstance(value, dict):
            settings |= {f"{name}.{inner_key}": inner for inner_key, inner in value.items()}
        elif name.startswith("tools_config.tools."):
            set_key(settings.setdefault("tools_config.tools", {}), name[19:], value)
        else:
            settings[name] = value
    return settings


def build(given: Given) -> Tree:
    """Agents with weights of their own unless they are shared, in one of our workflows."""
    config: Tree = {"team": {}, "policies": {}}
    build_team(given, config)
    build_tools(given, config)
    _rows(given, config)
    _algorithm(given, config)
    _policies(given, config)
    _amounts(given, config)
    _evaluation(given, config)
    _trackers(given, config)
    return config


def _rows(given: Given, config: Tree) -> None:
    """Set the files of rows; `json@FOLDER` is a folder of files."""
    for key, split in (("prompt_data", "train"), ("eval_dataset", "test")):
        value = given[key]
        if value is None and split == "test":
            value = _extra(given)
        if value is None or is_unknown(value):
            given.mark_missing(config, f"environment.{split}", f"rows, {show_value(value)} there")
        else:
            rows = value if isinstance(value, list) else [str(value).rpartition("@")[2]]
            set_key(config, f"environment.{split}", rows[0] if len(rows) == 1 else rows)
    if given["eval_dataset"] is not None:
        given.silence(["extra_eval_tasks", "extra_eval_dir"], "eval_dataset says what is evaluated")


def _extra(given: Given) -> list[str] | None:
    folder, names = given["extra_eval_dir"], given["extra_eval_tasks"]
    if not names or folder is None or is_unknown(folder):
        return None
    return [f"{folder}/{name}.json" for name in names]


def _algorithm(given: Given, config: Tree) -> None:
    name = given.choose("advantage_estimator", ESTIMATORS, "no such algorithm") or "drmas"
    if given["dynamic_filtering"]:
        if name == "drmas" and len(config["team"]) == 1:
            name = "dapo"
        else:
            given.refuse("dynamic_filtering", "dapo filters groups, of a team as a whole")
    set_key(config, "algorithm.name", name)
    set_key(config, "algorithm.agg", "token")
    if name == "ppo":
        set_key(config, "critics.agent", {"optimizer": {}})
    else:
        given.silence(["critic_learning_rate"], f"{name} has no critic")
    for key in ("gamma", "lambd"):
        reads = name == "ppo" or (name == "reinforce_pp" and key == "gamma")
        if not reads and given[key] != 1:
            given.refuse(key, f"{name} discounts nothing")
    low, high = given["eps_clip_low_high"] or [given["eps_clip"]] * 2
    set_key(config, "algorithm.clip_low", low)
    set_key(config, "algorithm.clip_high", high)
    _penalties(given, config, name)
    _correction(given, config)
    _kl(given, config)


def _penalties(given: Given, config: Tree, name: str) -> None:
    """Bounds of rewards, and what long turns pay."""
    low, high = given["reward_clip_range"]
    if name.startswith("reinforce_pp"):
        set_key(config, "algorithm.reward_clip", high)
        if low != -high:
            given.refuse("reward_clip_range", "scores are bounded alike on both sides")
    else:
        given.silence(["reward_clip_range"], f"{name} bounds no scores")
    length = given["overlong_buffer_len"]
    if name == "dapo":
        set_key(
            config, "algorithm.length_cache" if length else "algorithm.longest", length or NEVER
        )
    elif length is not None:
        given.refuse("overlong_buffer_len", "only dapo makes long turns pay")


def _correction(given: Given, config: Tree) -> None:
    names = ("vllm_is_level", "vllm_is_mode")
    if not given["enable_vllm_is_correction"]:
        set_key(config, "algorithm.correction", "none")
        given.silence([key for key in KEYS if key.startswith("vllm_is_")], "it is not enabled")
        return
    kind = CORRECTIONS.get((given[names[0]], given[names[1]]))
    if kind is None:
        given.refuse(names[0], f"no weight of this level in mode {given[names[1]]}")
    set_key(config, "algorithm.correction", kind or "token_tis")


def _kl(given: Given, config: Tree) -> None:
    coefficient = given["init_kl_coef"]
    set_key(config, "algorithm.kl", coefficient)
    if not coefficient:
        given.silence(["use_kl_loss", "kl_estimator"], "init_kl_coef is 0")
        return
    set_key(config, "algorithm.kl_in", "loss" if given["use_kl_loss"] else "reward")
    if given["use_kl_loss"]:
        set_key(config, "algorithm.kl_form", given["kl_estimator"])
    elif given["kl_estimator"] != "k1":
        given.refuse("kl_estimator", "the KL in the reward is old - ref, k1")
    for name in trained_policies(config):
        config["policies"][name]["reference"] = "initial"


def _policies(given: Given, config: Tree) -> None:
    schedule = given.choose("lr_scheduler", SCHEDULES, "no such schedule") or "constant"
    for name in trained_policies(config):
        config["policies"][name]["optimizer"] = {"schedule": schedule}
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


def _amounts(given: Given, config: Tree) -> None:
    """Translate steps and the optimizer steps in each; the warm-up is a share of all of these."""
    episodes = given["rollout_batch_size"] * given["n_samples_per_prompt"]
    batch = given["train_batch_size"]
    minibatches = max(1, episodes // batch)
    set_key(config, "algorithm.minibatches", minibatches)
    if episodes % batch and episodes > batch:
        given.refuse("train_batch_size", f"{episodes} episodes are not batches of {batch}")
    elif episodes < batch:
        given.refuse("train_batch_size", f"a step has {episodes} episodes only")
    steps = given.steps
    if steps is None and given.rows is not None:
        steps = given["num_episodes"] * (given.rows // given["rollout_batch_size"])
    set_key(config, "trainer.steps", steps or EDIT)
    if not steps:
        what = f"{given['num_episodes']} times the rows over rollout_batch_size"
        given.edits["trainer.steps"] = what
    updates = minibatches * given["max_epochs"]  # in a step
    for name in trained_policies(config) if given["lr_warmup_ratio"] else []:
        key = f"policies.{name}.optimizer.warmup_steps"
        if steps:
            set_key(config, key, round(given["lr_warmup_ratio"] * steps * updates))
        else:
            given.mark_missing(
                config, key, f"{given['lr_warmup_ratio']} of {updates} times the steps"
            )
    if given["async_train"]:
        set_key(config, "trainer.max_staleness", 1)
        set_key(config, "engine.separate_weights", True)


def _evaluation(given: Given, config: Tree) -> None:
    """Set how often evaluations run, and what they sample otherwise than training."""
    samples = given["eval_n_samples_per_prompt"]
    set_key(config, "evaluation.samples", samples)
    set_key(config, "evaluation.k", samples)
    set_key(config, "evaluation.tasks", NEVER)
    set_key(config, "evaluation.every", max(0, given["eval_steps"]))
    set_key(config, "trainer.save_every", given["save_steps"] if given["save_steps"] > 0 else NEVER)
    for key, name in (("eval_temperature", "temperature"), ("eval_generate_max_len", "max_tokens")):
        if given[key] is not None:
            set_key(config, f"evaluation.sampling.{name}", given[key])
    filtered = given["top_p"] < 1 or given["top_k"] > 0
    for agent in config["team"].values():
        if given["top_k"] > 0:
            set_key(agent, "sampling.top_k", given["top_k"])
    if filtered:
        set_key(config, "rollout.allow_filtered_sampling", True)


def _trackers(given: Given, config: Tree) -> None:
    trackers: list[JsonValue] = []
    if given["use_wandb"]:
        entity = given["wandb_org"]
        trackers.append(
            {"name": "wandb", "project": given["wandb_project"]}
            | ({"entity": entity} if entity else {})
        )
    else:
        given.silence(["wandb_org", "wandb_project"], "use_wandb is not set")
    if given["use_tensorboard"]:
        trackers.append("tensorboard")
    if trackers:
        config["trackers"] = trackers


FRAMEWORK = Framework(
    name="marti",
    title="MARTI",
    marks=("openrlhf", "marti.cli", "workflow_args", "agent_workflow", "workflow_func_path"),
    own_marks=("marti", "workflow_args", "agent_workflow", "workflow_func_path"),
    keys=KEYS,
    build=build,
    tidy=tidy,
)
