"""Says for each key of Dr. MAS, whose scripts override verl's config, what becomes of it."""

from __future__ import annotations

from rolecall.importers.drmas_rare_keys import RARE_KEYS
from rolecall.importers.keys import Key, becomes, ignore, read, refuse
from rolecall.importers.verl_names import (
    ACTOR,
    BASE,
    ENGINE,
    LEARNER,
    MODEL,
    OWN,
    PACKED,
    ROLLOUT,
    ROWS,
    SHARDS,
)

# What an agent, or its policy, has of its own here; `*` stands for it.
OF_EACH = {"team.*.": "team.*.", "policies.*.": "policies.*.", "algorithm.": "team.*.algorithm.",
           "learner.": "policies.*.learner."}  # fmt: skip


def _list_own_keys(keys: dict[str, Key]) -> dict[str, Key]:
    """Return the keys below agent_specific_parameters: a list of values, one for each agent."""
    own: dict[str, Key] = {}
    for name, key in keys.items():
        if not name.startswith(f"{BASE}."):
            continue
        spelt = name.replace(BASE, OWN, 1)
        start = next((start for start in OF_EACH if key.ours.startswith(start)), None)
        if start is not None and key.ours != "algorithm.name":
            own[spelt] = read(key.ours.replace(start, OF_EACH[start], 1))
        elif key.fate == "not needed":
            own[spelt] = key
        else:
            because = key.because or f"{key.ours} is the same for all agents"
            own[spelt] = refuse(f"no agent has a value of its own: {because}")
    return own


SCRIPT_KEYS: dict[str, Key] = {
    "algorithm.adv_estimator": read("algorithm.name", "gae"),
    "algorithm.group_by_agent_id": read("algorithm.name", False),
    "algorithm.norm_adv_by_std_in_grpo": read("algorithm.std", True),
    "algorithm.use_kl_in_reward": read("algorithm.kl_in", False),
    "algorithm.kl_penalty": refuse("the KL in the reward is old - ref", "kl", default="kl"),
    "algorithm.kl_ctrl.type": read("algorithm.kl_target", "fixed"),
    "algorithm.kl_ctrl.kl_coef": read("algorithm.kl", 0.001),
    "algorithm.kl_ctrl.target_kl": read("algorithm.kl_target", 0.1),
    "algorithm.kl_ctrl.horizon": read("algorithm.horizon", 10_000),
    "algorithm.gamma": becomes("algorithm.gamma", 1.0),
    "algorithm.lam": becomes("algorithm.lam", 1.0),
    "algorithm.filter_groups.enable": read("rollout.group_filter", False),
    "algorithm.filter_groups.max_num_gen_batches": ignore("a step draws tasks until it is full"),
    "algorithm.gigpo.step_advantage_w": read("algorithm.omega", 1.0),
    "algorithm.gigpo.mode": read("algorithm.std", "mean_norm"),
    "algorithm.gigpo.enable_similarity": read("algorithm.similarity", False),
    "algorithm.gigpo.similarity_thresh": read("algorithm.similarity", 1.0),
    "data.train_files": read("environment.train"),
    "data.val_files": read("environment.test"),
    "data.train_batch_size": becomes("rollout.groups", 1024),
    "data.val_batch_size": ignore("episodes run by themselves, in no batches"),
    "data.max_prompt_length": read("rollout.max_prompt_tokens", 512),
    "data.max_response_length": becomes("team.*.sampling.max_tokens", 512),
    "data.filter_overlong_prompts": read("rollout.max_prompt_tokens", False),
    "data.truncation": read("team.*.truncation.side", "error"),
    "data.return_raw_chat": ignore("conversations are kept as they are"),
    "data.return_full_prompt": ignore("prompts are in the run folder"),
    "data.apply_chat_template_kwargs.enable_thinking": becomes(
        "policies.*.template.enable_thinking"
    ),
    "data.shuffle": refuse("tasks are always sampled in an order of the seed", True),
    "data.prompt_key": ignore(ROWS),
    "data.reward_fn_key": ignore(ROWS),
    "data.trust_remote_code": refuse("no code of a model folder is run", False),
    f"{MODEL}.path": read("policies.*.base"),
    f"{MODEL}.lora_rank": read("policies.*.adapter.rank", 0),
    f"{MODEL}.lora_alpha": read("policies.*.adapter.alpha", 16),
    f"{MODEL}.target_modules": read("policies.*.adapter.targets", "all-linear"),
    f"{MODEL}.use_remove_padding": ignore(PACKED),
    f"{MODEL}.enable_gradient_checkpointing": becomes("learner.checkpoint_activations", True),
    f"{MODEL}.enable_activation_offload": ignore(SHARDS),
    f"{MODEL}.use_liger": ignore("kernels are chosen by the device"),
    f"{MODEL}.use_fused_kernels": ignore("kernels are chosen by the device"),
    f"{MODEL}.trust_remote_code": refuse("no code of a model folder is run", False),
    f"{ACTOR}.strategy": ignore(SHARDS),
    f"{ACTOR}.optim.lr": read("policies.*.optimizer.lr", 1e-6),
    f"{ACTOR}.optim.weight_decay": becomes("policies.*.optimizer.weight_decay", 0.01),
    f"{ACTOR}.optim.lr_warmup_steps": read("policies.*.optimizer.warmup_steps"),
    f"{ACTOR}.optim.lr_warmup_steps_ratio": read("policies.*.optimizer.warmup_ratio", 0.0),
    f"{ACTOR}.optim.warmup_style": read("policies.*.optimizer.schedule", "constant"),
    f"{ACTOR}.grad_clip": becomes("policies.*.optimizer.clip", 1.0),
    f"{ACTOR}.ppo_mini_batch_size": refuse(
        "an optimizer step is one of algorithm.minibatches: give ppo_mini_update_num"
    ),
    f"{ACTOR}.use_adaptive_ppo_mini_batch_size": refuse("give ppo_mini_update_num", True),
    f"{ACTOR}.ppo_mini_update_num": becomes("algorithm.minibatches"),
    f"{ACTOR}.ppo_micro_batch_size": ignore(LEARNER),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": ignore(LEARNER),
    f"{ACTOR}.use_dynamic_bsz": ignore(LEARNER),
    f"{ACTOR}.ppo_max_token_len_per_gpu": becomes("learner.tokens_per_batch"),
    f"{ACTOR}.ppo_epochs": becomes("algorithm.epochs", 1),
    f"{ACTOR}.shuffle": ignore("minibatches are drawn in an order of the seed"),
    f"{ACTOR}.clip_ratio": read("algorithm.clip_low", 0.2),
    f"{ACTOR}.clip_ratio_low": read("algorithm.clip_low"),
    f"{ACTOR}.clip_ratio_high": read("algorithm.clip_high"),
    f"{ACTOR}.clip_ratio_c": becomes("algorithm.dual_clip", 3.0),
    f"{ACTOR}.loss_agg_mode": read("algorithm.agg", "token-mean"),
    f"{ACTOR}.policy_loss.loss_mode": read("algorithm.name", "vanilla"),
    f"{ACTOR}.entropy_coeff": becomes("algorithm.entropy", 0.001),
    f"{ACTOR}.use_kl_loss": read("algorithm.kl_in", False),
    f"{ACTOR}.kl_loss_coef": read("algorithm.kl", 0.001),
    f"{ACTOR}.kl_loss_type": read("algorithm.kl_form", "low_var_kl"),
    f"{ACTOR}.use_invalid_action_penalty": read("team.*.invalid_penalty", True),
    f"{ACTOR}.invalid_action_penalty_coef": read("team.*.invalid_penalty", 0.1),
    f"{ACTOR}.use_torch_compile": ignore("kernels are chosen by the device"),
    f"{ACTOR}.fsdp_config.param_offload": ignore(SHARDS),
    f"{ACTOR}.fsdp_config.optimizer_offload": ignore(SHARDS),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": ignore(LEARNER),
    "actor_rollout_ref.ref.fsdp_config.param_offload": ignore(SHARDS),
    f"{ROLLOUT}.name": ignore(ENGINE),
    f"{ROLLOUT}.mode": ignore(ENGINE),
    f"{ROLLOUT}.temperature": becomes("team.*.sampling.temperature", 1.0),
    f"{ROLLOUT}.top_p": read("team.*.sampling.top_p", 1),
    f"{ROLLOUT}.top_k": read("team.*.sampling.top_k", -1),
    f"{ROLLOUT}.do_sample": refuse("a trained agent must sample", True),
    f"{ROLLOUT}.n": refuse("env.rollout.n says it", 1),
    f"{ROLLOUT}.dtype": ignore(ENGINE),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": ignore(LEARNER),
    f"{ROLLOUT}.tensor_model_parallel_size": ignore(ENGINE),
    f"{ROLLOUT}.gpu_memory_utilization": ignore("engine.cache_gb, or engine.memory of vLLM"),
    f"{ROLLOUT}.max_num_batched_tokens": ignore(ENGINE),
    f"{ROLLOUT}.max_num_seqs": becomes("engine.max_sequences"),
    f"{ROLLOUT}.max_model_len": ignore("told by the model's own config"),
    f"{ROLLOUT}.enable_chunked_prefill": ignore(ENGINE),
    f"{ROLLOUT}.enforce_eager": ignore(ENGINE),
    f"{ROLLOUT}.free_cache_engine": ignore(ENGINE),
    f"{ROLLOUT}.load_format": ignore(ENGINE),
    f"{ROLLOUT}.val_kwargs.do_sample": read("evaluation.greedy", False),
    f"{ROLLOUT}.val_kwargs.temperature": read("evaluation.sampling.temperature"),
    f"{ROLLOUT}.val_kwargs.top_p": read("evaluation.sampling.top_p"),
    f"{ROLLOUT}.val_kwargs.top_k": read("evaluation.sampling.top_k"),
    f"{ROLLOUT}.val_kwargs.n": refuse("env.rollout.val_n says it", 1),
    "critic.optim.lr": becomes("critics.*.optimizer.lr"),
    "critic.optim.weight_decay": becomes("critics.*.optimizer.weight_decay"),
    "critic.model.path": read("critics.token.base"),
    "critic.model.use_remove_padding": ignore(PACKED),
    "critic.model.enable_gradient_checkpointing": ignore("as learner.checkpoint_activations"),
    "critic.model.fsdp_config.param_offload": ignore(SHARDS),
    "critic.model.fsdp_config.optimizer_offload": ignore(SHARDS),
    "critic.ppo_micro_batch_size_per_gpu": ignore(LEARNER),
    "critic.cliprange_value": becomes("algorithm.clip_value"),
    "env.env_name": read("environment.name"),
    "env.seed": becomes("trainer.seed", 0),
    "env.max_steps": becomes("workflow.max_steps"),
    "env.history_length": becomes("workflow.history"),
    "env.rollout.n": becomes("rollout.group_size", 1),
    "env.rollout.val_n": read("evaluation.samples", 1),
    "env.search.search_url": read("environment.url"),
    "env.search.topk": becomes("environment.topk", 3),
    "env.search.timeout": becomes("environment.deadline_s", 60),
    "env.search.log_requests": ignore("every search lies in the run folder"),
    "agent.multi_agent": ignore("a team of one is a team"),
    "agent.agent_ids": read("team"),
    "agent.model_ids": read("policies.*.base"),
    "agent.use_agent_memory": read("team.*.memory", False),
    "agent.model_sharing": read("team.*.policy", False),
    "agent.orchestra_type": read("workflow.name"),
    "agent.orchestra.math.max_loop_num": becomes("workflow.rounds"),
    OWN: ignore("a list is one value for each agent"),
    "agent.train_start_step": refuse("all agents train from the first step"),
    "agent.random_dropout": refuse("no agent is left out at random", False),
    "agent.random_dropout_ratio": refuse("no agent is left out at random", 0, 0.0),
    "trainer.critic_warmup": read("trainer.critic_warmup", 0),
    "trainer.logger": read("trackers", ["console", "wandb"]),
    "trainer.project_name": read("trackers", "verl_examples"),
    "trainer.experiment_name": read("output"),
    "trainer.n_gpus_per_node": ignore("learner: {name: fsdp, ranks: N} trains on N GPUs"),
    "trainer.nnodes": ignore("one machine"),
    "trainer.save_freq": read("trainer.save_every"),
    "trainer.test_freq": read("evaluation.every"),
    "trainer.total_epochs": read("trainer.epochs", 30),
    "trainer.total_training_steps": read("trainer.steps"),
    "trainer.val_only": ignore("`rolecall eval FILE` evaluates without training"),
    "trainer.val_before_train": ignore("a run evaluates before and after"),
    "trainer.max_actor_ckpt_to_keep": becomes("trainer.keep"),
    "trainer.resume_mode": ignore("a second start in the folder of a run continues it"),
    "trainer.default_local_dir": read("output"),
    "trainer.balance_batch": ignore(PACKED),
}
KEYS: dict[str, Key] = SCRIPT_KEYS | RARE_KEYS
KEYS |= _list_own_keys(KEYS)
