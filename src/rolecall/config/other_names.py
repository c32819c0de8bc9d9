"""Maps options of TRL, verl, OpenRLHF and PEFT to our keys, for hints behind unknown keys."""

from __future__ import annotations

# Last part of an option -> (who calls it so, our key). NAME stands for a policy or an agent.
TRL, VERL, OPENRLHF, PEFT = "TRL", "verl", "OpenRLHF", "PEFT"
OTHER_NAMES: dict[str, tuple[str, str]] = {
    # adapters
    "lora": (PEFT, "policies.NAME.adapter"),
    "lora_r": (TRL, "policies.NAME.adapter.rank"),
    "lora_rank": (f"{VERL} and {OPENRLHF}", "policies.NAME.adapter.rank"),
    "lora_alpha": (f"{TRL}, {VERL} and {OPENRLHF}", "policies.NAME.adapter.alpha"),
    "lora_target_modules": (TRL, "policies.NAME.adapter.targets"),
    "target_modules": (f"{VERL} and {PEFT}", "policies.NAME.adapter.targets"),
    "use_peft": (TRL, "policies.NAME.adapter"),
    "load_in_4bit": (f"{TRL} and {OPENRLHF}", "policies.NAME.quantization"),
    "load_in_8bit": (TRL, "policies.NAME.quantization"),
    # models and data
    "model_name_or_path": (TRL, "policies.NAME.base"),
    "pretrain": (OPENRLHF, "policies.NAME.base"),
    "critic_pretrain": (OPENRLHF, "critics.NAME.base"),
    "reward_pretrain": (OPENRLHF, "rewards"),
    "ref_model": (TRL, "policies.NAME.reference"),
    "dataset_name": (TRL, "environment"),
    "train_files": (VERL, "environment"),
    "val_files": (VERL, "environment"),
    "prompt_data": (OPENRLHF, "environment"),
    "actor_rollout_ref": (VERL, "policies"),
    "reward_funcs": (TRL, "rewards"),
    "reward_weights": (TRL, "rewards"),
    "reward_model": (VERL, "rewards"),
    "custom_reward_function": (VERL, "rewards"),
    "remote_rm_url": (OPENRLHF, "rewards"),
    # what a step collects
    "num_generations": (TRL, "rollout.group_size"),
    "n_samples_per_prompt": (OPENRLHF, "rollout.group_size"),
    "n": (VERL, "rollout.group_size"),
    "train_batch_size": (f"{VERL} and {OPENRLHF}", "rollout.groups"),
    "rollout_batch_size": (OPENRLHF, "rollout.groups"),
    "per_device_train_batch_size": (TRL, "learner.tokens_per_batch"),
    "micro_train_batch_size": (OPENRLHF, "learner.tokens_per_batch"),
    "ppo_micro_batch_size_per_gpu": (VERL, "learner.tokens_per_batch"),
    "ppo_max_token_len_per_gpu": (VERL, "learner.tokens_per_batch"),
    "gradient_accumulation_steps": (TRL, "learner.tokens_per_batch"),
    # sampling
    "max_completion_length": (TRL, "team.NAME.sampling.max_tokens"),
    "max_new_tokens": ("transformers", "team.NAME.sampling.max_tokens"),
    "max_response_length": (VERL, "team.NAME.sampling.max_tokens"),
    "generate_max_len": (OPENRLHF, "team.NAME.sampling.max_tokens"),
    "use_vllm": (TRL, "engine.name"),
    "vllm_gpu_memory_utilization": (f"{TRL} and {OPENRLHF}", "engine.memory"),
    "gpu_memory_utilization": (VERL, "engine.memory"),
    "vllm_num_engines": (OPENRLHF, "engine.replicas"),
    # loss and credit
    "beta": (TRL, "algorithm.kl"),
    "init_kl_coef": (OPENRLHF, "algorithm.kl"),
    "kl_loss_coef": (VERL, "algorithm.kl"),
    "use_kl_loss": (f"{VERL} and {OPENRLHF}", "algorithm.kl_in"),
    "use_kl_in_reward": (VERL, "algorithm.kl_in"),
    "kl_loss_type": (VERL, "algorithm.kl_form"),
    "kl_estimator": (OPENRLHF, "algorithm.kl_form"),
    "epsilon": (TRL, "algorithm.clip_low"),
    "epsilon_high": (TRL, "algorithm.clip_high"),
    "clip_ratio": (VERL, "algorithm.clip_low"),
    "clip_ratio_low": (VERL, "algorithm.clip_low"),
    "clip_ratio_high": (VERL, "algorithm.clip_high"),
    "clip_ratio_c": (VERL, "algorithm.dual_clip"),
    "eps_clip": (OPENRLHF, "algorithm.clip_low"),
    "eps_clip_low_high": (OPENRLHF, "algorithm.clip_low"),
    "entropy_coeff": (VERL, "algorithm.entropy"),
    "entropy_loss_coef": (OPENRLHF, "algorithm.entropy"),
    "loss_agg_mode": (VERL, "algorithm.agg"),
    "loss_type": (TRL, "algorithm.agg"),
    "scale_rewards": (TRL, "algorithm.std"),
    "norm_adv_by_std_in_grpo": (VERL, "algorithm.std"),
    "mask_truncated_completions": (TRL, "algorithm.mask_truncated"),
    "adv_estimator": (VERL, "algorithm.name"),
    "advantage_estimator": (OPENRLHF, "algorithm.name"),
    "num_iterations": (TRL, "algorithm.epochs"),
    "ppo_epochs": (VERL, "algorithm.epochs"),
    "max_epochs": (OPENRLHF, "algorithm.epochs"),
    "ppo_mini_batch_size": (VERL, "algorithm.minibatches"),
    "ref_model_sync_steps": (TRL, "policies.NAME.reference_update_every"),
    # optimizer
    "learning_rate": (TRL, "policies.NAME.optimizer.lr"),
    "actor_learning_rate": (OPENRLHF, "policies.NAME.optimizer.lr"),
    "critic_learning_rate": (OPENRLHF, "critics.NAME.optimizer.lr"),
    "lr": (VERL, "policies.NAME.optimizer.lr"),
    "max_grad_norm": (TRL, "policies.NAME.optimizer.clip"),
    "grad_clip": (VERL, "policies.NAME.optimizer.clip"),
    "max_norm": (OPENRLHF, "policies.NAME.optimizer.clip"),
    "lr_scheduler_type": (TRL, "policies.NAME.optimizer.schedule"),
    "lr_scheduler": (OPENRLHF, "policies.NAME.optimizer.schedule"),
    "adam_betas": (OPENRLHF, "policies.NAME.optimizer.betas"),
    "adam_beta1": (TRL, "policies.NAME.optimizer.betas"),
    "adam_epsilon": (TRL, "policies.NAME.optimizer.eps"),
    "lr_warmup_steps": (VERL, "policies.NAME.optimizer.warmup_steps"),
    # the run
    "max_steps": (TRL, "trainer.steps"),
    "total_training_steps": (VERL, "trainer.steps"),
    "num_train_epochs": (TRL, "trainer.steps"),
    "total_epochs": (VERL, "trainer.steps"),
    "num_episodes": (OPENRLHF, "trainer.steps"),
    "save_steps": (f"{TRL} and {OPENRLHF}", "trainer.save_every"),
    "save_freq": (VERL, "trainer.save_every"),
    "save_total_limit": (TRL, "trainer.keep"),
    "max_ckpt_num": (OPENRLHF, "trainer.keep"),
    "eval_steps": (f"{TRL} and {OPENRLHF}", "evaluation.every"),
    "test_freq": (VERL, "evaluation.every"),
    "report_to": (TRL, "trackers"),
    "logger": (VERL, "trackers"),
    "use_wandb": (OPENRLHF, "trackers"),
    "output_dir": (TRL, "output"),
    "save_path": (OPENRLHF, "output"),
    "default_local_dir": (VERL, "output"),
    "gradient_checkpointing": (f"{TRL} and {OPENRLHF}", "learner.checkpoint_activations"),
    "enable_gradient_checkpointing": (VERL, "learner.checkpoint_activations"),
    "bf16": (f"{TRL} and {OPENRLHF}", "learner.dtype"),
    "adam_offload": (OPENRLHF, "learner.offload"),
    "optimizer_offload": (VERL, "learner.offload"),
    "zero_stage": (OPENRLHF, "learner.name"),
    "n_gpus_per_node": (VERL, "learner.ranks"),
}


def hint_of(name: str) -> str:
    """Return what to write instead of another library's option, or "" if it is none."""
    if name not in OTHER_NAMES:
        return ""
    library, ours = OTHER_NAMES[name]
    return (
        f"write {ours} (what {library} have as {name})"
        if " " in library
        else (f"write {ours} (what {library} has as {name})")
    )
