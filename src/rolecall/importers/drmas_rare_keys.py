"""Says what becomes of the keys of Dr. MAS's YAML that none of its scripts sets."""

from __future__ import annotations

from rolecall.importers.keys import Key, becomes, ignore, read, refuse
from rolecall.importers.verl_names import (
    ACTOR,
    ENGINE,
    LEARNER,
    MODEL,
    PACKED,
    REF,
    ROLLOUT,
    SHARDS,
)

CODE = "no code of a model folder is run"
OWN_CONFIG = "a model is what its own config says"
EPISODES = "a run folder holds all episodes"
SAVED = "a checkpoint always holds what the run needs to go on"
KERNELS = "kernels are chosen by the device"
REWARD = "reward_model"
LENGTH = "trainer.total_training_steps says it"
BY_PROCESS = ("use_shm", "fsdp_config.wrap_policy.min_num_params", "fsdp_config.offload_policy",
              "fsdp_config.reshard_after_forward", "fsdp_config.fsdp_size", "strategy",
              "fsdp_config.param_offload", "fsdp_config.optimizer_offload",
              "ulysses_sequence_parallel_size")  # fmt: skip
RARE_KEYS: dict[str, Key] = {
    "data.tokenizer": refuse("a model speaks with its own tokenizer"),
    "data.use_shm": ignore("rows are read where they lie"),
    "data.return_raw_input_ids": ignore("conversations are kept as they are"),
    "data.filter_overlong_prompts_workers": ignore("prompts are counted in this process"),
    "data.image_key": refuse("messages are texts, without pictures", "images"),
    "data.video_key": refuse("messages are texts, without films", "videos"),
    "data.apply_chat_template_kwargs": ignore("its keys are options of the chat template"),
    "data.custom_cls.path": refuse("write an environment of your own: docs/extend.md"),
    "data.custom_cls.name": ignore("of data.custom_cls.path"),
    "actor_rollout_ref.hybrid_engine": ignore(ENGINE),
    f"{MODEL}.external_lib": refuse(CODE),
    f"{MODEL}.override_config": refuse(OWN_CONFIG, {}),
    f"{ACTOR}.checkpoint.contents": ignore(SAVED),
    f"{ACTOR}.optim.min_lr_ratio": read("policies.*.optimizer.min_lr_ratio"),
    f"{ACTOR}.optim.num_cycles": refuse("a cosine falls once", 0.5),
    f"{ACTOR}.optim.total_training_steps": ignore(LENGTH),
    f"{REF}.use_torch_compile": ignore(KERNELS),
    **{f"{ACTOR}.{name}": ignore(SHARDS) for name in BY_PROCESS[1:5]},
    f"{MODEL}.use_shm": ignore("weights are read where they lie"),
    f"{ACTOR}.ulysses_sequence_parallel_size": ignore(
        "ranks that share a row are learner.context_parallel"
    ),
    **{f"{REF}.{name}": ignore(SHARDS) for name in BY_PROCESS},
    **{
        f"{section}.{name}": ignore(LEARNER)
        for section in (REF, ROLLOUT)
        for name in ("log_prob_micro_batch_size", "log_prob_use_dynamic_bsz",
                     "log_prob_max_token_len_per_gpu")
    },
    f"{ROLLOUT}.chat_scheduler": refuse("write a workflow of your own: docs/extend.md"),
    f"{ROLLOUT}.use_fire_sampling": refuse("a turn has one temperature", False),
    f"{ROLLOUT}.prompt_length": ignore("as data.max_prompt_length"),
    f"{ROLLOUT}.response_length": becomes("team.*.sampling.max_tokens"),
    f"{ROLLOUT}.ignore_eos": refuse("a turn ends at the model's end token", False),
    **{
        f"{ROLLOUT}.{name}": ignore(ENGINE)
        for name in ("layered_summon", "disable_log_stats", "engine_kwargs.vllm.swap_space",
                     "engine_kwargs.sglang.attention_backend")
    },
    f"{ROLLOUT}.multi_turn.enable": refuse(
        "the workflow says how often an agent speaks, and team.NAME.tools what it may call", False
    ),
    f"{ROLLOUT}.multi_turn.max_turns": ignore("of multi_turn.enable"),
    f"{ROLLOUT}.multi_turn.tool_config_path": refuse("list tools in team.NAME.tools"),
    f"{ROLLOUT}.multi_turn.format": ignore("of multi_turn.enable"),
    "critic.rollout_n": ignore("as env.rollout.n"),
    "critic.optim.lr_warmup_steps_ratio": becomes("critics.*.optimizer.warmup_ratio"),
    "critic.optim.min_lr_ratio": read("critics.*.optimizer.min_lr_ratio"),
    "critic.optim.warmup_style": read("critics.*.optimizer.schedule"),
    "critic.optim.total_training_steps": ignore(LENGTH),
    "critic.model.use_shm": ignore("weights are read where they lie"),
    "critic.model.tokenizer_path": ignore("a critic reads the tokens of the policies"),
    "critic.model.override_config": refuse(OWN_CONFIG, {}),
    "critic.model.external_lib": refuse(CODE),
    "critic.model.enable_activation_offload": ignore(SHARDS),
    "critic.model.trust_remote_code": refuse(CODE, False),
    "critic.model.lora_rank": refuse("all weights of a critic are trained", 0),
    "critic.model.lora_alpha": ignore("of critic.model.lora_rank"),
    "critic.model.target_modules": ignore("of critic.model.lora_rank"),
    **{f"critic.model.{name}": ignore(SHARDS) for name in BY_PROCESS[1:5]},
    "critic.strategy": ignore(SHARDS),
    "critic.ulysses_sequence_parallel_size": ignore(SHARDS),
    "critic.ppo_mini_batch_size": read("algorithm.minibatches"),
    **{
        f"critic.{name}": ignore(LEARNER)
        for name in ("ppo_micro_batch_size", "forward_micro_batch_size",
                     "forward_micro_batch_size_per_gpu", "use_dynamic_bsz",
                     "ppo_max_token_len_per_gpu", "forward_max_token_len_per_gpu")
    },
    "critic.ppo_epochs": read("algorithm.critic_epochs"),
    "critic.shuffle": ignore("minibatches are drawn in an order of the seed"),
    "critic.grad_clip": becomes("critics.*.optimizer.clip"),
    "critic.loss_agg_mode": read("algorithm.agg"),
    "critic.checkpoint.contents": ignore(SAVED),
    f"{REWARD}.enable": read("rewards.reward_model", False),
    f"{REWARD}.model.path": read("rewards.reward_model.model"),
    f"{REWARD}.model.input_tokenizer": ignore("a reward model reads texts in its own template"),
    f"{REWARD}.model.external_lib": refuse(CODE),
    f"{REWARD}.model.trust_remote_code": refuse(CODE, False),
    f"{REWARD}.model.use_remove_padding": ignore(PACKED),
    f"{REWARD}.model.use_fused_kernels": ignore(KERNELS),
    **{f"{REWARD}.model.{name}": ignore(SHARDS) for name in (*BY_PROCESS[:5], BY_PROCESS[6])},
    f"{REWARD}.strategy": ignore(SHARDS),
    f"{REWARD}.ulysses_sequence_parallel_size": ignore(SHARDS),
    **{
        f"{REWARD}.{name}": ignore("a reward model reads one text at a time")
        for name in ("micro_batch_size", "micro_batch_size_per_gpu", "use_dynamic_bsz",
                     "forward_max_token_len_per_gpu")
    },
    f"{REWARD}.max_length": becomes("rewards.reward_model.max_tokens"),
    f"{REWARD}.reward_manager": refuse("write a reward of your own: docs/extend.md", "episode"),
    f"{REWARD}.launch_reward_fn_async": ignore("rewards are computed while other episodes run"),
    f"{REWARD}.sandbox_fusion.url": ignore("maths and search run no programs"),
    f"{REWARD}.sandbox_fusion.max_concurrent": ignore("maths and search run no programs"),
    "custom_reward_function.path": refuse("write a reward of your own: docs/extend.md"),
    "custom_reward_function.name": ignore("of custom_reward_function.path"),
    "algorithm.use_pf_ppo": refuse("every turn is trained as often as the others", False),
    "algorithm.pf_ppo.reweight_method": ignore("of algorithm.use_pf_ppo"),
    "algorithm.pf_ppo.weight_pow": ignore("of algorithm.use_pf_ppo"),
    "trainer.log_val_generations": ignore(EPISODES),
    "trainer.rollout_data_dir": ignore(EPISODES),
    "trainer.validation_data_dir": ignore(EPISODES),
    "trainer.resume_from_path": refuse("start again in the folder of the run: train --output"),
    "trainer.default_hdfs_dir": ignore("checkpoints lie in the run folder"),
    "trainer.del_local_ckpt_after_load": ignore("trainer.keep says what stays"),
    "trainer.max_critic_ckpt_to_keep": ignore("trainer.keep counts critics, too"),
    "trainer.ray_wait_register_center_timeout": ignore("nothing registers anywhere"),
    "trainer.device": ignore("learner.device chooses it"),
    "ray_init.num_cpus": ignore("the processors of this machine are used as they are"),
    **dict.fromkeys(
        ("env.sokoban.dim_room", "env.sokoban.num_boxes", "env.sokoban.search_depth",
         "env.sokoban.mode", "env.webshop.use_small", "env.webshop.human_goals"),
        ignore("of another env.env_name"),
    ),
}  # fmt: skip
