"""Makes a config of ours from a GRPO config of TRL: a team of one agent."""

from __future__ import annotations

from rolecall.core.json_types import JsonObject
from rolecall.importers.keys import (
    Framework,
    Given,
    Key,
    Tree,
    becomes,
    ignore,
    read,
    refuse,
    report,
    set_key,
)

ENGINE = "the embedded engine samples with the weights being trained; engine has others"
LEARNER = "learner.tokens_per_batch bounds a forward pass"
LOGS = "a run folder holds the log of every step"
SHARDS = "learner: {name: replicated or fsdp, ranks: N} trains on N GPUs of a machine"
ROWS = "the rows that are trained on are the split `train`"
LOSSES = {"grpo": "turn_mean", "bnpo": "token", "dapo": "token", "dr_grpo": "turn_sum"}
SPREADS = {"group": "task", True: "task", "batch": "global", "none": "none", False: "none"}
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant",
             "constant_with_warmup": "constant"}  # fmt: skip
TRACKERS = ("wandb", "mlflow", "tensorboard", "trackio")
NEVER = 1_000_000
LOGGING_STEPS = 10  # steps between evaluations where eval_steps is not given
KEYS: dict[str, Key] = {
    "model_name_or_path": read("policies.*.base"),
    "dataset_name": read("environment.train"),
    "dataset_config": report("the whole data set is read"),
    "dataset_train_split": refuse(ROWS, "train", default="train"),
    "dataset_test_split": refuse("the rows that are evaluated are the split `test`", "test"),
    "reward_funcs": read("rewards"),
    "reward_weights": read("rewards"),
    "output_dir": becomes("output"),
    "run_name": ignore("a run is called as its folder"),
    "seed": becomes("trainer.seed", 42),
    "learning_rate": becomes("policies.*.optimizer.lr", 1e-6),
    "lr_scheduler_type": read("policies.*.optimizer.schedule", "linear"),
    "warmup_steps": becomes("policies.*.optimizer.warmup_steps", 0),
    "warmup_ratio": becomes("policies.*.optimizer.warmup_ratio", 0.0),
    "weight_decay": becomes("policies.*.optimizer.weight_decay", 0.0),
    "max_grad_norm": becomes("policies.*.optimizer.clip", 1.0),
    "adam_beta1": read("policies.*.optimizer.betas", 0.9),
    "adam_beta2": read("policies.*.optimizer.betas", 0.999),
    "adam_epsilon": becomes("policies.*.optimizer.eps", 1e-8),
    "optim": report("AdamW it is", "adamw_torch", "adamw_torch_fused"),
    "num_train_epochs": read("trainer.epochs", 3.0),
    "max_steps": read("trainer.steps", -1),
    "per_device_train_batch_size": read("rollout.groups", 8),
    "gradient_accumulation_steps": read("rollout.groups", 1),
    "generation_batch_size": read("rollout.groups"),
    "steps_per_generation": read("algorithm.minibatches"),
    "num_generations": becomes("rollout.group_size", 8),
    "num_iterations": becomes("algorithm.epochs", 1),
    "max_prompt_length": ignore("a prompt is never cut"),
    "max_completion_length": becomes("team.*.sampling.max_tokens", 512),
    "temperature": becomes("team.*.sampling.temperature", 1.0),
    "top_p": read("team.*.sampling.top_p", 1.0),
    "top_k": read("team.*.sampling.top_k", 0),
    "min_p": refuse("tokens are cut off by top_p and top_k"),
    "repetition_penalty": report("it would train another distribution than it samples", 1, 1.0),
    "beta": read("algorithm.kl", 0.0),
    "epsilon": read("algorithm.clip_low", 0.2),
    "epsilon_high": read("algorithm.clip_high"),
    "delta": becomes("algorithm.dual_clip"),
    "loss_type": read("algorithm.agg", "dapo"),
    "scale_rewards": read("algorithm.std", "group"),
    "importance_sampling_level": read("algorithm.name", "token"),
    "mask_truncated_completions": becomes("algorithm.mask_truncated", False),
    "entropy_coef": becomes("algorithm.entropy"),
    "vllm_importance_sampling_correction": ignore("sampler and learner have the same weights"),
    "vllm_importance_sampling_mode": ignore("sampler and learner have the same weights"),
    "sync_ref_model": refuse("a reference is that of the run's beginning", False),
    "bf16": read("learner.dtype"),
    "fp16": report("bfloat16 has the range of float32, so no loss is scaled", False),
    "torch_dtype": read("learner.dtype"),
    "dtype": read("learner.dtype"),
    "gradient_checkpointing": becomes("learner.checkpoint_activations", True),
    "use_peft": read("policies.*.adapter", False),
    "lora_r": read("policies.*.adapter.rank", 16),
    "lora_alpha": read("policies.*.adapter.alpha", 32),
    "lora_dropout": report("adapters are trained without dropout", 0, 0.0),
    "lora_target_modules": read("policies.*.adapter.targets"),
    "load_in_4bit": read("policies.*.quantization", False),
    "load_in_8bit": read("policies.*.quantization", False),
    "report_to": read("trackers", "none"),
    "save_steps": becomes("trainer.save_every", 500),
    "save_total_limit": becomes("trainer.keep"),
    "save_strategy": refuse("checkpoints are written every trainer.save_every steps", "steps"),
    "eval_strategy": read("evaluation.every", "no"),
    "eval_steps": read("evaluation.every"),
    "trust_remote_code": refuse("no code of a model folder is run", False),
    **dict.fromkeys(
        ("logging_steps", "logging_first_step", "logging_strategy", "log_completions", "log_level"),
        ignore(LOGS),
    ),
    **dict.fromkeys(
        ("use_vllm", "vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size",
         "vllm_server_host", "vllm_server_port", "vllm_max_model_length", "attn_implementation",
         "use_liger_kernel", "ds3_gather_for_generation"),
        ignore(ENGINE),
    ),
    **dict.fromkeys(("per_device_eval_batch_size", "tf32", "torch_compile"), ignore(LEARNER)),
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config", "ddp_timeout"), ignore(SHARDS)),
    **dict.fromkeys(
        ("gradient_checkpointing_kwargs", "dataloader_num_workers", "push_to_hub", "hub_model_id",
         "remove_unused_columns", "overwrite_output_dir", "do_eval", "resume_from_checkpoint"),
        ignore("it changes nothing of what is learned"),
    ),
}  # fmt: skip
DIFFERS = (
    "The batch is that of one GPU: its size there is multiplied by the number of processes.",
)


def tidy(values: JsonObject) -> JsonObject:
    """Return the values with hyphens of options as underscores."""
    return {name.replace("-", "_"): value for name, value in values.items()}


def build(given: Given) -> Tree:
    """Return a team of one agent that answers each question once."""
    config: Tree = {"team": {"solver": {"policy": "solver"}}, "policies": {"solver": {}}}
    set_key(config, "workflow.name", "single")
    set_key(config, "environment.name", "math")
    if given["dataset_name"] is None:
        given.mark_missing(config, "environment.train", "rows: a file or a data set of the hub")
    else:
        set_key(config, "environment.train", given["dataset_name"])
    if given["reward_funcs"] is not None:
        what = "path/to/file.py:name of each function, with its weight; correct: 1.0 for maths"
        given.mark_missing(config, "rewards", f"{what} ({given['reward_funcs']} there)")
        for key in ("reward_funcs", "reward_weights"):
            given.placed[key] = "rewards"
    _policy(given, config)
    _algorithm(given, config)
    _amounts(given, config)
    return config


def _policy(given: Given, config: Tree) -> None:
    policy = config["policies"]["solver"]
    if given["model_name_or_path"] is None:
        given.mark_missing(config, "policies.solver.base", "the model")
    else:
        policy["base"] = given["model_name_or_path"]
    schedule = given.choose("lr_scheduler_type", SCHEDULES, "no such schedule")
    policy["optimizer"] = {
        "schedule": schedule or "constant", "betas": [given["adam_beta1"], given["adam_beta2"]],
    }  # fmt: skip
    if given["use_peft"]:
        policy["adapter"] = {"rank": given["lora_r"], "alpha": given["lora_alpha"]}
        if given["lora_target_modules"]:
            policy["adapter"]["targets"] = given["lora_target_modules"]
    else:
        given.silence([key for key in KEYS if key.startswith("lora_")], "use_peft is not set")
    for bits in ("4bit", "8bit"):
        if given[f"load_in_{bits}"]:
            policy["quantization"] = bits
    kinds = {"float32": "float32", "bfloat16": "bfloat16", "float16": "bfloat16", "auto": "auto"}
    for key in ("torch_dtype", "dtype"):
        if given[key] is not None:
            dtype = given.choose(key, kinds, "weights are float32 or bfloat16")
            set_key(config, "learner.dtype", dtype or "float32")
    if given["bf16"]:
        set_key(config, "learner.dtype", "bfloat16")


def _algorithm(given: Given, config: Tree) -> None:
    level = {"token": "grpo", "sequence": "gspo"}
    name = given.choose("importance_sampling_level", level, "no such level") or "grpo"
    set_key(config, "algorithm.name", name)
    agg = given.choose("loss_type", LOSSES, "no such mean of the loss") or "token"
    set_key(config, "algorithm.agg", agg)
    if agg == "turn_sum":
        set_key(config, "algorithm.turn_length", given["max_completion_length"])
    spread = given.choose("scale_rewards", SPREADS, "no such spread") or "task"
    set_key(config, "algorithm.std", spread)
    set_key(config, "algorithm.clip_low", given["epsilon"])
    high = given["epsilon_high"]
    set_key(config, "algorithm.clip_high", given["epsilon"] if high is None else high)
    if given["beta"]:
        set_key(config, "algorithm.kl", given["beta"])
        config["policies"]["solver"]["reference"] = "initial"


def _amounts(given: Given, config: Tree) -> None:
    accumulated = given["gradient_accumulation_steps"]
    batch = given["per_device_train_batch_size"] * accumulated
    sampled = given["generation_batch_size"]
    if sampled is None and given["steps_per_generation"]:
        sampled = given["per_device_train_batch_size"] * given["steps_per_generation"]
    sampled = sampled or batch
    size = given["num_generations"]
    if sampled % size:
        given.refuse("num_generations", f"a batch of {sampled} is not groups of {size}")
    set_key(config, "rollout.groups", max(1, sampled // size))
    set_key(config, "algorithm.minibatches", max(1, sampled // batch))
    if given.steps or given["max_steps"] > 0:
        set_key(config, "trainer.steps", given.steps or given["max_steps"])
        given.silence(["num_train_epochs"], "max_steps says it")
    else:
        set_key(config, "trainer.epochs", given["num_train_epochs"])
        given.silence(["max_steps"], "num_train_epochs says it")
    is_evaluated = given["eval_strategy"] == "steps"
    if given["eval_strategy"] not in ("steps", "no"):
        given.refuse("eval_strategy", "evaluations run every evaluation.every steps; write steps")
    every = int(given["eval_steps"] or LOGGING_STEPS)
    set_key(config, "evaluation.every", every if is_evaluated else 0)
    set_key(config, "evaluation.tasks", NEVER if is_evaluated else 0)
    filtered = given["top_p"] < 1 or given["top_k"] > 0
    if filtered:
        sampling = {"top_p": given["top_p"]} if given["top_p"] < 1 else {}
        sampling |= {"top_k": given["top_k"]} if given["top_k"] > 0 else {}
        config["team"]["solver"]["sampling"] = sampling
        set_key(config, "rollout.allow_filtered_sampling", True)
    named = given["report_to"]
    named = named if isinstance(named, list) else [named]
    trackers = [name for name in named if name in TRACKERS]
    if trackers:
        config["trackers"] = trackers
    for name in named:
        if name not in (*TRACKERS, "none", "all"):
            given.refuse("report_to", f"trackers are {', '.join(TRACKERS)}")


MARKS = ("num_generations", "max_completion_length", "per_device_train_batch_size")
FRAMEWORK = Framework(
    name="trl",
    title="TRL",
    marks=MARKS,
    own_marks=MARKS,
    keys=KEYS,
    build=build,
    tidy=tidy,
    differs=DIFFERS,
)
