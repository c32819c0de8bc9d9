"""Scripts in the form of those that published the coach's recipes, with their values."""

from __future__ import annotations

# default_agent.KEY=VALUE of the training scripts of MAPPA (2601.23228), and of their YAML.
COMMON = {
    "n_samples_per_prompt": 2,
    "train_batch_size": 16,
    "max_epochs": 1,
    "temperature": 1.0,
    "eval_temperature": 0.6,
    "top_p": 1.0,
    "eps_clip": 0.2,
    "actor_learning_rate": 1e-6,
    "bf16": True,
    "adam_offload": True,
    "gradient_checkpointing": True,
    "init_kl_coef": 0.01,
    "use_kl_loss": False,
    "max_ckpt_num": 10,
    "vllm_num_engines": 2,
    "n_eval_samples_per_prompt": 2,
    "seed": 42,
}
MATHCHAT = COMMON | {
    "num_episodes": 8,
    "rollout_batch_size": 32,
    "generate_max_len": 4096,
    "max_samples": 512,
    "save_steps": 32,
    "eval_steps": 4,
}
DSBENCH = COMMON | {
    "num_episodes": 30,
    "rollout_batch_size": 16,
    "generate_max_len": 16384,
    "max_samples": 400000,
    "save_steps": 4,
    "eval_steps": 2,
    "stratified_sampling": True,
}


def write_options(values: dict[str, object], *others: str) -> str:
    """Return the options as they stand in a script."""
    own = (f"default_agent.{key}={value}" for key, value in values.items())
    return " ".join([*own, "mask_truncated_completions=True", "filter_agents_data=True", *others])
