"""Makes a config of ours from MRLM's YAML: one agent in one of our environments."""

from __future__ import annotations

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import Framework, Given, Tree, set_key
from rolecall.importers.mrlm_keys import KEYS, MODEL, TASKS

SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine"}
# What makes these environments here is a team and a workflow, which MRLM's files do not hold.
ELSEWHERE = {
    "debate": "write a team for environment: debate, workflow: debate, rewards: mrlm_debate",
    "tool": "write a team with tools for environment: tool_use, rewards: mrlm_tool",
    "llm": "name the model that plays the user in environment: llm, with workflow: multi_turn",
}
SECTIONS = {"ppo": "ppo", "grpo": "grpo", "dpo": "dpo"}


def tidy(values: JsonObject) -> JsonObject:
    """Return the values with keys of `model.generation` as those of `model`; the nearer key
    counts."""
    return {
        key: value
        for key, value in values.items()
        if not (key.startswith("model.") and f"model.generation.{key[6:]}" in values)
    }


def build(given: Given) -> Tree:
    """Build a config with one agent on one policy, in one of our environments."""
    config: Tree = {"team": {}, "policies": {"policy": {}}}
    algorithm = given.choose("training.algorithm", SECTIONS, "no such algorithm")
    _tasks(given, config)
    _model(given, config)
    set_key(config, "algorithm.name", algorithm or "grpo")
    _amounts(given, config, algorithm=algorithm or "grpo")
    if algorithm == "ppo":
        set_key(config, "critics.agent", {})
        set_key(config, "algorithm.gamma", 1.0)
        set_key(config, "algorithm.value_coef", 2 * given["ppo.value_loss_coef"])
        set_key(config, "algorithm.clip_low", given["ppo.clip_range"])
        set_key(config, "algorithm.clip_high", given["ppo.clip_range"])
    if algorithm == "dpo":
        set_key(config, "policies.policy.reference", "initial")
    for section in ("ppo", "grpo", "dpo", "sft"):
        if section != given["training.algorithm"]:
            names = [key for key in KEYS if key.startswith(f"{section}.")]
            given.silence(names, f"training.algorithm is {given['training.algorithm']}")
    for name in MODEL:  # the spelling that is given counts
        spelt = f"model.generation.{name}"
        unused = f"model.{name}" if spelt in given.values else spelt
        given.silence([unused], "given in the other place")
    _places(given, config)
    return config


def _tasks(given: Given, config: Tree) -> None:
    """Environment and workflow; DPO's rows are no tasks."""
    kind = given["policy_env.env_type"]
    because = ELSEWHERE.get(kind, "write a workflow and an environment for it")
    name = given.choose("policy_env.env_type", {"math": "math", "code": "code"}, because)
    attempts = given["max_turns"] or given["policy_env.max_attempts"]
    flow, role = (
        ("multi_turn", "actor") if name == "code" and attempts > 1 else ("single", "solver")
    )
    config["team"][role] = {"policy": "policy"}
    config["workflow"] = {"name": flow}
    if flow == "multi_turn":
        set_key(config, "workflow.max_turns", attempts)
    elif attempts > 1 and "policy_env.max_attempts" in given.values:
        given.refuse("policy_env.max_attempts", "a maths problem is answered once")
    elif "max_turns" in given.values:
        given.refuse("max_turns", "a maths problem is answered once")
    if name is None:
        given.mark_missing(config, "environment.name", "what the agent works on")
        return
    set_key(config, "environment.name", name)
    set_key(config, f"rewards.mrlm_{name}", float(given["policy_env.reward_scale"]))
    if name == "code":
        set_key(config, "environment.score", "share")
        set_key(config, "environment.wall_s", float(given["policy_env.timeout"]))
    elif "policy_env.timeout" in given.values:
        given.refuse("policy_env.timeout", "only programs have a time limit")
    spelt = ("policy_env.dataset", "dataset.path", "dataset.name")
    rows = next((given[key] for key in spelt if given[key]), None)
    if rows:
        set_key(config, "environment.train", rows)
    tests = [_test(given, env) for env in given["eval_envs"] or []]
    if tests and all(tests):
        set_key(config, "environment.test", tests)


def _test(given: Given, env: JsonObject) -> str | None:
    """Return the rows of one of `eval_envs`, which must be of the environment that trains."""
    for name, value in env.items():
        same = value == given[f"policy_env.{name}"] if name in TASKS else False
        if name not in ("dataset", "mode") and not same:
            given.refuse("eval_envs", f"{name}: {value!r} is not that of policy_env")
    if not env.get("dataset"):
        given.refuse("eval_envs", "without a dataset there is nothing to evaluate")
    return env.get("dataset")


def _model(given: Given, config: Tree) -> None:
    policy = config["policies"]["policy"]
    base = given["model.model_name_or_path"]
    if base is None:
        given.mark_missing(config, "policies.policy.base", "the model")
    else:
        policy["base"] = base
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
    types = {"float32": "float32", "bfloat16": "bfloat16"}
    if given["model.torch_dtype"] is not None:
        dtype = given.choose("model.torch_dtype", types, "weights are float32 or bfloat16")
        set_key(config, "learner.dtype", dtype or "float32")
    if given["training.use_bf16"]:
        set_key(config, "learner.dtype", "bfloat16")


def _amounts(given: Given, config: Tree, *, algorithm: str) -> None:
    """Translate steps, episodes of a step, and how many optimizer steps they make."""
    steps = given["training.num_iterations"] or given["training.num_epochs"]
    set_key(config, "trainer.steps", steps)
    batch = given["training.mini_batch_size"] or given["training.batch_size"]
    if algorithm == "dpo":
        set_key(config, "rollout.groups", batch)
        given.mark_missing(config, "rollout.data", "the file of preferences")
        amounts = ("training.num_rollouts_per_iteration", "episodes_per_iteration")
        given.silence(amounts, "DPO plays no episodes")
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


def _places(given: Given, config: Tree) -> None:
    """Set the run folder and the trackers; sampling that is filtered must be allowed."""
    folder = given["output_dir"] or given["output.save_dir"]
    name = given["experiment_name"]
    if folder or name:
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
    own_marks=("policy_env", "num_rollouts_per_iteration", "eval_envs"),
    keys=KEYS,
    build=build,
    tidy=tidy,
)
