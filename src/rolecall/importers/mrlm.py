"""Makes a config of ours from MRLM's YAML: one agent in one of our environments."""

from __future__ import annotations

from pathlib import Path

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import Framework, Given, Tree, set_key
from rolecall.importers.mrlm_keys import KEYS, MODEL
from rolecall.importers.mrlm_tasks import build_tasks
from rolecall.models.base_location import UNOWNED

SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine"}
SECTIONS = {"ppo": "ppo", "grpo": "grpo", "dpo": "dpo", "sft": "sft"}
DIFFERS = (
    "Before its next attempt an agent sees whether its answer was right, without the answer.",
)
IMITATE = {"behavioral_cloning": "agent", "world_model": "world", "combined": "both"}


def tidy(values: JsonObject) -> JsonObject:
    """Return the values with keys of `model.generation` as those of `model`; the nearer key
    counts."""
    spelt = {"training.episodes_per_iteration": "episodes_per_iteration"}
    return {
        spelt.get(key, key): value
        for key, value in values.items()
        if not (key.startswith("model.") and f"model.generation.{key[6:]}" in values)
    }


def build(given: Given) -> Tree:
    """Build a config with one agent on one policy, in one of our environments."""
    config: Tree = {"team": {}, "policies": {"policy": {}}}
    algorithm = SECTIONS.get(given["training.algorithm"])
    if algorithm == "dpo":
        _answers(given, config)
    else:
        build_tasks(given, config)
    _model(given, config)
    if algorithm is None:
        name = given["training.algorithm"]
        given.mark_missing(config, "algorithm.name", f"{name} there, which is not known here")
        given.silence(["training.algorithm"], "algorithm.name is to fill in")
    else:
        set_key(config, "algorithm.name", algorithm)
    _amounts(given, config, algorithm=algorithm or "ppo")
    if algorithm == "ppo":
        set_key(config, "critics.agent", {})
        set_key(config, "algorithm.gamma", 1.0)
        set_key(config, "algorithm.value_coef", 2 * given["ppo.value_loss_coef"])
        set_key(config, "algorithm.clip_low", given["ppo.clip_range"])
        set_key(config, "algorithm.clip_high", given["ppo.clip_range"])
    if algorithm == "grpo" and "grpo.clip_range" in given.values:
        set_key(config, "algorithm.clip_low", given["grpo.clip_range"])
        set_key(config, "algorithm.clip_high", given["grpo.clip_range"])
    if algorithm == "dpo":
        if not given["dpo.reference_free"]:
            set_key(config, "policies.policy.reference", "initial")
        losses = {"sigmoid": "sigmoid", "ipo": "ipo"}
        loss = given.choose("dpo.loss_type", losses, "its loss is sigmoid or ipo")
        set_key(config, "algorithm.loss_type", loss or "sigmoid")
    if algorithm == "sft":
        _stages(given, config)
    for section in ("ppo", "grpo", "dpo", "sft"):
        if section != given["training.algorithm"]:
            names = [key for key in KEYS if key.startswith(f"{section}.")]
            given.silence(names, f"training.algorithm is {given['training.algorithm']}")
    for name in MODEL:  # the spelling that is given counts
        spelt = f"model.generation.{name}"
        unused = f"model.{name}" if spelt in given.values else spelt
        given.silence([unused], "given in the other place")
    _distribute(given, config)
    _places(given, config)
    return config


def _model(given: Given, config: Tree) -> None:
    policy = config["policies"]["policy"]
    base = given["model.model_name_or_path"]
    if base is None:
        given.mark_missing(config, "policies.policy.base", "the model")
    else:
        policy["base"] = base
        if base in UNOWNED:
            policy["chat_template"] = "plain"  # GPT-2 models have none
    if given["model.tokenizer_name_or_path"] == base:
        given.silence(["model.tokenizer_name_or_path"], "it is the model's own")
    beta1, beta2 = given["training.adam_beta1"], given["training.adam_beta2"]
    set_key(config, "policies.policy.optimizer.betas", [beta1, beta2])
    if given["training.lr_scheduler"] is not None:
        schedule = given.choose("training.lr_scheduler", SCHEDULES, "no such schedule")
        set_key(config, "policies.policy.optimizer.schedule", schedule or "constant")
    adapter = [key for key in KEYS if key.startswith("model.lora_")]
    if given["model.use_lora"]:
        policy["adapter"] = {"rank": given["model.lora_r"], "alpha": given["model.lora_alpha"]}
        if given["model.lora_target_modules"]:
            set_key(policy, "adapter.targets", given["model.lora_target_modules"])
    else:
        given.silence(adapter, "model.use_lora is not set")
    for bits in ("8bit", "4bit"):
        if given[f"model.load_in_{bits}"]:
            policy["quantization"] = bits
    types = {"float32": "float32", "bfloat16": "bfloat16", "float16": "bfloat16"}
    if given["model.torch_dtype"] is not None:
        dtype = given.choose("model.torch_dtype", types, "weights are float32 or bfloat16")
        set_key(config, "learner.dtype", dtype or "float32")
        if given["model.torch_dtype"] == "float16":
            given.notes["model.torch_dtype"] = "it has float32's range, so no loss is scaled"
    if given["training.use_bf16"]:
        set_key(config, "learner.dtype", "bfloat16")


def _distribute(given: Given, config: Tree) -> None:
    """Train on several GPUs of this machine if it is enabled."""
    names = ("distributed.strategy", "distributed.num_gpus")
    if not given["distributed.enabled"]:
        given.silence(names, "distributed.enabled is not set")
        return
    learners = {"ddp": "replicated", "fsdp": "fsdp"}
    name = given.choose(names[0], learners, "a learner is replicated or sharded by FSDP2")
    set_key(config, "learner.name", name or "replicated")
    if given[names[1]] > 1:
        set_key(config, "learner.ranks", given[names[1]])


def _amounts(given: Given, config: Tree, *, algorithm: str) -> None:
    """Translate steps, episodes of a step, and how many optimizer steps they make."""
    steps = given["training.num_iterations"] or given["training.num_epochs"]
    if algorithm in ("dpo", "sft"):  # of these an iteration is a pass over the data set
        names = ("training.num_iterations", "training.num_epochs")
        given.placed |= dict.fromkeys(names, "trainer.epochs" if algorithm == "dpo" else "stages")
    set_key(config, "trainer.epochs" if algorithm == "dpo" else "trainer.steps", steps)
    batch = given["training.mini_batch_size"] or given["training.batch_size"]
    if algorithm == "dpo":
        set_key(config, "rollout.groups", batch)
        for key in ("training.batch_size", "training.mini_batch_size"):
            given.placed[key] = "rollout.groups"
        amounts = ("training.num_rollouts_per_iteration", "episodes_per_iteration")
        given.silence(amounts, "DPO plays no episodes")
        return
    if algorithm == "sft":
        given.placed["training.batch_size"] = "stages"
        given.silence(["training.num_rollouts_per_iteration"], "SFT reads episodes_per_iteration")
        return
    spelt = "episodes_per_iteration"
    if given[spelt] is None:
        spelt = "training.num_rollouts_per_iteration"
    size = given["grpo.group_size"] if algorithm == "grpo" else 1
    set_key(config, "rollout.group_size", size)
    set_key(config, "rollout.groups", max(1, given[spelt] // size))
    if given[spelt] % size:
        given.refuse(spelt, f"{given[spelt]} episodes are not groups of {size}")
    set_key(config, "algorithm.minibatches", max(1, given[spelt] // batch))
    if given[spelt] % batch and given[spelt] > batch:
        for key in ("training.mini_batch_size", "training.batch_size"):
            given.refuse(key, f"{given[spelt]} episodes are not batches of {batch}")


def _answers(given: Given, config: Tree) -> None:
    """Set the file of preferences; its rows are no tasks, so nothing is evaluated."""
    config["team"]["solver"] = {"policy": "policy"}
    config["workflow"] = {"name": "single"}
    config["environment"] = {"name": "math"}
    set_key(config, "evaluation.tasks", 0)
    names = [key for key in ("dataset.path", "dataset.name") if given[key]]
    if names and _is_on_hub(str(given[names[0]])):
        what = "a file of rows with prompt, chosen and rejected, made of"
        given.mark_missing(config, "rollout.data", f"{what} {given[names[0]]}")
        given.placed |= dict.fromkeys(names, "rollout.data")
    elif names:
        set_key(config, "rollout.data", given[names[0]])
        given.placed |= dict.fromkeys(names, "rollout.data")
    else:
        given.mark_missing(config, "rollout.data", "the file of preferences")
    unused = ("training.eval_every", "training.eval_episodes", "output.eval_interval", "eval_envs")
    given.silence(unused, "preferences are no tasks that are evaluated")
    given.silence(
        [key for key in KEYS if key.startswith("policy_env.")],
        "policy_env is the policy, there too",
    )


def _is_on_hub(name: str) -> bool:
    """Return whether a data set is a repository on the hub, OWNER/NAME, and no file here."""
    path = Path(name).expanduser()
    return not path.suffix and len(path.parts) == 2 and not path.exists()


def _stages(given: Given, config: Tree) -> None:
    """Play episodes first, and train on their turns then."""
    epochs = config["trainer"].pop("steps")
    rounds = max(1, epochs // given["sft.collect_every"])
    played = min(given["sft.max_trajectories"], rounds * (given["episodes_per_iteration"] or 16))
    mode = given.choose("sft.mode", IMITATE, "no such mode")
    select: Tree = {"imitate": mode or "both"}
    if given["sft.filter_low_reward"]:
        select["least"] = float(given["sft.min_reward_threshold"])
    else:
        given.silence(["sft.min_reward_threshold"], "sft.filter_low_reward is not set")
    weights = ("sft.bc_weight", "sft.world_model_weight")
    if mode != "both":
        given.silence(weights, f"sft.mode is {given['sft.mode']}")
    else:
        select["world_weight"] = given[weights[1]] / given[weights[0]]
        given.placed |= dict.fromkeys(weights, "stages")
    given.notes["sft.collect_every"] = "all of its rounds are played before training begins"
    config["stages"] = [
        {"name": "play", "collect": select, "rollout": {"groups": played}},
        {
            "name": "imitate",
            "from": "play",
            "rollout": {"groups": given["training.batch_size"]},
            "trainer": {"epochs": epochs},
        },
    ]
    set_key(config, "rollout.group_size", 1)
    for key in ("episodes_per_iteration", "sft.mode", "sft.filter_low_reward", "sft.collect_every",
                "sft.min_reward_threshold", "sft.max_trajectories"):  # fmt: skip
        given.placed[key] = "stages"


def _places(given: Given, config: Tree) -> None:
    """Set the run folder and the trackers; sampling that is filtered must be allowed."""
    folder = given["output_dir"] or given["output.save_dir"]
    name = given["experiment_name"]
    if folder and str(folder).rpartition("/")[2] == name:
        config["output"] = folder
    elif folder or name:
        config["output"] = "/".join(item for item in (folder or "runs", name) if item)
    trackers: list[JsonValue] = []
    if given["training.wandb_project"]:
        entity = given["training.wandb_entity"]
        trackers.append(
            {"name": "wandb", "project": given["training.wandb_project"]}
            | ({"entity": entity} if entity else {})
        )
    elif given["training.wandb_entity"]:
        given.silence(["training.wandb_entity"], "training.wandb_project is not set")
    if given["training.use_tensorboard"]:
        trackers.append("tensorboard")
    if trackers:
        config["trackers"] = trackers
    top_p = given.values.get("model.generation.top_p", given["model.top_p"])
    top_k = given.values.get("model.generation.top_k", given["model.top_k"])
    if (top_p or 1.0) < 1.0 or (top_k or 0) > 0:
        set_key(config, "rollout.allow_filtered_sampling", True)
    set_key(config, "evaluation.samples", 1)
    set_key(config, "evaluation.k", 1)


FRAMEWORK = Framework(
    name="mrlm",
    title="MRLM",
    marks=(
        "policy_env",
        "model_name_or_path",
        "num_rollouts_per_iteration",
        "eval_envs",
        "training:",
    ),
    differs=DIFFERS,
    own_marks=("policy_env", "num_rollouts_per_iteration", "eval_envs"),
    keys=KEYS,
    build=build,
    tidy=tidy,
)
