"""Each key of each framework becomes something, is refused, or is said not to be needed."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from rolecall.core.errors import ConfigError
from rolecall.importers.importing import check, render
from rolecall.importers.keys import EDIT, UNKNOWN, set_key
from rolecall.importers.translating import FRAMEWORKS, find_edits, translate

MATH_TEAM = {
    "agent.agent_ids": ["Solver Agent", "Verifier Agent"],
    "agent.model_ids": ["a/b", "a/b"],
    "agent.orchestra_type": "math",
    "env.env_name": "math",
    "env.rollout.n": 8,
    "data.train_files": "train.parquet",
    "data.val_files": "test.parquet",
    "algorithm.adv_estimator": "grpo",
    "algorithm.group_by_agent_id": True,
    "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
}
SEARCH_TEAM = MATH_TEAM | {
    "agent.agent_ids": ["Verifier Agent", "Search Agent", "Answer Agent"],
    "agent.model_ids": ["a/b", "a/b", "a/b"],
    "agent.orchestra_type": "search",
    "env.env_name": "search",
    "env.search.search_url": "http://127.0.0.1:8000/retrieve",
}
VAL = "actor_rollout_ref.rollout.val_kwargs"
OWN = "agent.agent_specific_parameters."
ACTOR = "actor_rollout_ref.actor"
CHAIN = [{"0": {"role": "generator", "pretrain": "a/b", "chat_template": ["$question\nThink."]}},
         {"1": {"role": "verifier", "pretrain": "a/b"}},
         {"2": {"role": "refiner", "pretrain": "a/b", "is_tuning": False}}]  # fmt: skip
CHAIN_RUN = {
    "agents": CHAIN,
    "workflow_func_path": "openrlhf/agent_workflows/chain_workflow.py",
    "advantage_estimator": "group_norm",
    "n_samples_per_prompt": 8,
    "rollout_batch_size": 16,
    "train_batch_size": 128,
    "prompt_data": "json@/data/MATH",
    "eval_dataset": "json@/data/MATH",
    "eval_temperature": 1.0,
}
EXPERIENCE = {
    "workflow_func_path": "experience_workflow.py",
    "agents": [{"0": {"role": "generator", "pretrain": "a/b"}}],
}
MATHCHAT = {
    "workflow_func_path": "mathchat_workflow.py",
    "agents": [{"0": {"role": "agent_problem_solver", "pretrain": "a/b"}},
               {"1": {"role": "agent_code_executor", "pretrain": "a/b", "code_execution": True}},
               {"2": {"role": "agent_verifier", "pretrain": "a/b"}}],
}  # fmt: skip
DEBATE = {
    "workflow_func_path": "debate_workflow.py",
    "agents": [{str(n): {"role": "generator", "pretrain": "a/b"}} for n in range(3)],
}
GROWN = {
    "workflow_func_path": "ab_mcts_workflow.py",
    "agents": [{"0": {"role": "generator", "pretrain": "a/b"}}],
    "workflow_args.max_num_nodes": 8,
}
TOOL = {
    "workflow_func_path": "tool_workflow.py",
    "agents": [{"0": {"role": "generator", "pretrain": "a/b"}}],
    "tools_config.tools": {"search": {"type": "search_r1", "base_url": "http://h/retrieve"}},
}
ONE = {"workflow_func_path": "single_mathworkflow.py",
       "agents": [{"0": {"role": "generator", "pretrain": "a/b"}}]}  # fmt: skip
FIRST_RUN = {  # of MARTI's first version
    "agent_workflow": "chain-of-agents",
    "agents": [{role: {"role": role}} for role in ("generator", "verifier", "refiner")],
    "pretrain": "a/b",
    "advantage_estimator": "group_norm",
    "n_samples_per_prompt": 8,
    "rollout_batch_size": 16,
    "train_batch_size": 128,
    "prompt_data": "json@/data/MATH",
    "extra_eval_tasks": ["aime"],
    "extra_eval_dir": "/data/bench",
    "eval_temperature": 1.0,
    "input_key": "prompt",
    "label_key": "answer",
}
FIRST_DEBATE = FIRST_RUN | {
    "agent_workflow": "multi-agents-debate",
    "agents": [{str(n): {"role": "generator"}} for n in range(3)],
    "workflow_args.num_rounds": 2,
    "chat_template": ["$question\nThink.", "$responses_str\nThink of $question again."],
    "reward_alloc.name": "margin_with_outcome",
}
COACHED = FIRST_RUN | {
    "workflow_func_path": "marti/worlds/workflows/mathchat_workflow_with_coach.py",
    "processor_func_path": "marti/worlds/workflows/mathchat_processor.py",
    "agents": [{role: {"role": f"agent_{role}"}}
               for role in ("problem_solver", "code_executor", "verifier")],
    "advantage_estimator": "reinforce_plus_plus",
}  # fmt: skip
TABLES = COACHED | {
    "workflow_func_path": "marti/worlds/workflows/dsbench_workflow.py",
    "processor_func_path": "marti/worlds/workflows/dsbench_processor.py",
    "agents": [
        {role: {"role": f"agent_{role}"}} for role in ("data_engineer", "modeler", "analyst")
    ],
    "stratified_sampling": True,
}
REVIEWS = {
    "workflow_func_path": "judge_workflow.py",
    "agents": [{"0": {"role": "generator", "pretrain": "a/b"}},
               {"1": {"role": "judge", "pretrain": "a/b", "is_tuning": False}}],
    "workflow_args.label_separator": "||",
}  # fmt: skip
FIRST_TOOL = FIRST_RUN | {
    "agent_workflow": "tool",
    "agents": None,
    "verify_task": "search_r1",
    "tools_config.tools": {"search": {"type": "search_r1", "base_url": "http://h/retrieve"}},
}
MRLM = {
    "training.algorithm": "grpo",
    "model.model_name_or_path": "a/b",
    "policy_env.env_type": "math",
}
VERL = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "train.parquet",
    "data.val_files": "test.parquet",
    "actor_rollout_ref.model.path": "a/b",
    "actor_rollout_ref.rollout.n": 8,
    f"{VAL}.do_sample": True,
    "trainer.logger": ["wandb"],
    "trainer.project_name": "p",
}
TRL = {
    "model_name_or_path": "a/b",
    "dataset_name": "rows.jsonl",
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "reward_funcs": None,
}
# Files that together make every key count; a key counts if it counts in one of them.
FILES = {
    "drmas": [
        MATH_TEAM,
        SEARCH_TEAM,
        MATH_TEAM | {f"{ACTOR}.use_kl_loss": True},
        MATH_TEAM | {"algorithm.use_kl_in_reward": True, "trainer.logger": ["wandb"],
                     "algorithm.kl_ctrl.type": "adaptive"},
        MATH_TEAM | {"algorithm.adv_estimator": "gae", "algorithm.group_by_agent_id": False},
        MATH_TEAM | {"actor_rollout_ref.model.lora_rank": 8},
        MATH_TEAM | {f"{ACTOR}.optim.warmup_style": "cosine", "reward_model.enable": True},
        MATH_TEAM | {"algorithm.adv_estimator": "gae", "critic.model.path": "c/d",
                     "critic.optim.warmup_style": "cosine", "algorithm.group_by_agent_id": False},
        MATH_TEAM | {"algorithm.adv_estimator": "gigpo", "algorithm.gigpo.similarity_thresh": 0.9},
        MATH_TEAM | {"algorithm.adv_estimator": "gigpo", "algorithm.gigpo.enable_similarity": True,
                     "data.filter_overlong_prompts": True},
        {k: v for k, v in MATH_TEAM.items() if k not in ("agent.model_ids", f"{VAL}.do_sample")},
    ],
    "marti": [
        CHAIN_RUN,
        CHAIN_RUN | {"advantage_estimator": "gae", "lora_rank": 8, "use_wandb": "key"},
        CHAIN_RUN | {"use_kl_loss": True, "enable_vllm_is_correction": True},
        CHAIN_RUN | {"enable_vllm_is_correction": True, "vllm_is_mode": "mask"},
        CHAIN_RUN | {"kl_target": 6.0, "dynamic_filtering": True, "truncate_prompt": True},
        CHAIN_RUN | {"advantage_estimator": "reinforce", "prompt_data": "a.json,b.json"},
        CHAIN_RUN | ONE | {"dynamic_filtering": True},
        CHAIN_RUN | MATHCHAT,
        CHAIN_RUN | EXPERIENCE,
        CHAIN_RUN | DEBATE,
        CHAIN_RUN | REVIEWS,
        CHAIN_RUN | TOOL,
        CHAIN_RUN | GROWN,
        CHAIN_RUN | {"processor_func_path": "chain_processor.py", "overlong_buffer_len": 100,
                     "reward_alloc.name": "margin_with_outcome"},
        CHAIN_RUN | {"agents": [{"0": {"role": "generator", "is_api_model": True,
                                       "model_name": "gpt-9"}}, *CHAIN[1:]]},
        {k: v for k, v in CHAIN_RUN.items() if k not in ("eval_dataset", "workflow_func_path")}
        | {"extra_eval_tasks": ["aime"], "extra_eval_dir": "/data/bench",
           "agent_workflow": "chain-of-agents",
           "agents": [{name: {"role": name}} for name in ("generator", "verifier", "refiner")]},
    ],
    "marti_v1": [
        FIRST_RUN,
        FIRST_RUN | {"advantage_estimator": "gae", "lora_rank": 8, "use_wandb": "key"},
        FIRST_RUN | {"use_kl_loss": True, "use_weave": True, "truncate_prompt": True},
        FIRST_RUN | {"advantage_estimator": "reinforce", "prompt_data": "a.json,b.json"},
        FIRST_RUN | {"agents": None, "agent_workflow": "base"},
        FIRST_DEBATE,
        FIRST_RUN | {"agent_workflow": "mcts", "agents": [{"a": {"role": "generator"}}]},
        FIRST_RUN | {"agents": [{"a": {"role": "generator", "is_api_model": True,
                                       "model_name": "gpt-9"}},
                                {"b": {"role": "verifier"}}, {"c": {"role": "refiner"}}]},
        COACHED,
        COACHED | {"workflow_args.use_vertex_ai": True},
        TABLES,
        FIRST_RUN | REVIEWS | {"apply_chat_template": True},
        FIRST_TOOL,
        FIRST_TOOL | {"agent_workflow": "experience_workflow"},
    ],
    "verl": [
        VERL,
        VERL | {f"{ACTOR}.use_kl_loss": True, f"{VAL}.do_sample": False},
        VERL | {"algorithm.use_kl_in_reward": True, "data.filter_overlong_prompts": True,
                "algorithm.kl_ctrl.type": "adaptive"},
        VERL | {"algorithm.adv_estimator": "gae", "critic.model.path": "c/d"},
        VERL | {"algorithm.adv_estimator": "gae", "critic.optim.warmup_style": "cosine"},
        VERL | {f"{ACTOR}.optim.warmup_style": "cosine", "reward_model.enable": True},
        VERL | {"actor_rollout_ref.model.lora_rank": 8, "trainer.total_training_steps": 5},
    ],
    "trl": [
        TRL,
        TRL | {"use_peft": True, "eval_strategy": "steps", "eval_steps": 10, "num_iterations": 2},
        TRL | {"steps_per_generation": 4, "loss_type": "dr_grpo", "reward_funcs": "a"},
    ],
    "mrlm": [
        MRLM,
        MRLM | {"training.algorithm": "ppo", "policy_env.env_type": "code"},
        MRLM | {"training.algorithm": "dpo", "distributed.enabled": True},
        MRLM | {"training.algorithm": "sft", "sft.filter_low_reward": True},
        MRLM | {"training.algorithm": "sft"},
        MRLM | {"model.use_lora": True, "training.wandb_project": "p"},
    ],
}  # fmt: skip
# Another value of a key than it has in the files above, where its default does not suggest one.
OTHER = {
    "dynamic_filtering_reward_range": [0.1, 0.9],
    "data.truncation": "left",
    "workflow_args.max_num_nodes": 4,
    "workflow_args.eval_max_num_nodes": 4,
    "workflow_args.algo": {"params": {"dist_type": "beta"}},
    "data.apply_chat_template_kwargs.enable_thinking": False,
    "agent.agent_ids": ["Verifier Agent", "Solver Agent", "Critic Agent"],
    "agent.model_ids": ["c/d", "e/f"],
    f"{ACTOR}.ppo_mini_update_num": 5,
    f"{ACTOR}.ppo_max_token_len_per_gpu": 9999,
    f"{ACTOR}.optim.lr_warmup_steps": 5,
    f"{ACTOR}.clip_ratio_low": 0.1,
    f"{ACTOR}.clip_ratio_high": 0.3,
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    f"{ACTOR}.kl_loss_type": "mse",
    f"{ACTOR}.optim.warmup_style": "cosine",
    "actor_rollout_ref.rollout.max_num_seqs": 33,
    "actor_rollout_ref.rollout.top_p": 0.5,
    "actor_rollout_ref.rollout.top_k": 7,
    f"{VAL}.temperature": 0.5,
    f"{VAL}.top_p": 0.5,
    f"{VAL}.top_k": 5,
    "critic.optim.lr": 1e-3,
    "critic.optim.weight_decay": 0.5,
    "critic.cliprange_value": 0.7,
    "critic.grad_clip": 0.5,
    "prompt_data_probs": "0.5,0.5",
    "critic_pretrain": "a/critic",
    "critic.ppo_epochs": 3,
    "critic.ppo_mini_batch_size": 33,
    "critic.loss_agg_mode": "seq-mean-token-mean",
    "critic.optim.warmup_style": "cosine",
    "critic.optim.lr_warmup_steps_ratio": 0.1,
    "reward_model.model.path": "a/reward",
    "reward_model.max_length": 99,
    "actor_rollout_ref.rollout.response_length": 99,
    "env.max_steps": 9,
    "env.history_length": 9,
    "agent.orchestra.math.max_loop_num": 7,
    "trainer.logger": ["tensorboard"],
    "trainer.save_freq": 77,
    "trainer.test_freq": 77,
    "trainer.total_training_steps": 55,
    "trainer.max_actor_ckpt_to_keep": 9,
    "trainer.experiment_name": "it",
    "trainer.default_local_dir": "there",
    "default_agent": {},
    "workflow_args.num_rounds": 3,
    "workflow_args.max_others": 2,
    "workflow_args.contain_self": False,
    "tools_config.tools": {"python": {"type": "sandbox_fusion", "base_url": "http://h"}},
    "tools_config.max_turns": 4,
    "agents": CHAIN[:2],
    "workflow_func_path": "openrlhf/agent_workflows/debate_workflow.py",
    "agent_workflow": "mixture-of-agents",
    "chat_template": "Think twice.",
    "pretrain": "c/d",
    "extra_eval_tasks": ["amc"],
    "extra_eval_dir": "/else",
    "prompt_data": "other.json",
    "eval_dataset": "other.json",
    "advantage_estimator": "rloo",
    "kl_estimator": "k2",
    "eps_clip_low_high": [0.1, 0.3],
    "dual_clip": 4.0,
    "entropy_loss_coef": 0.5,
    "reward_clip_range": [-5, 5],
    "mask_truncated_completions": True,
    "overlong_buffer_len": 100,
    "vllm_is_level": "sequence",
    "vllm_is_mode": "mask",
    "lr_scheduler": "linear",
    "adam_betas": [0.5, 0.5],
    "top_k": 8,
    "top_p": 0.5,
    "use_wandb": "key",
    "wandb_org": "us",
    "gradient_checkpointing": True,
    "use_tensorboard": "x",
    "train_max_tokens_per_gpu": 999,
    "algorithm.gigpo.enable_similarity": False,
    "sft.collect_every": 5,
    "lr_scheduler_type": "cosine",
    "scale_rewards": "batch",
    "loss_type": "grpo",
    "importance_sampling_level": "sequence",
    "torch_dtype": "bfloat16",
    "dtype": "bfloat16",
    "report_to": "wandb",
    "eval_strategy": "steps",
    "lora_target_modules": ["q_proj"],
    "reward_weights": [2.0],
    "max_steps": 7,
    "per_device_train_batch_size": 32,
    "generation_batch_size": 64,
    "steps_per_generation": 2,
    "dpo.loss_type": "ipo",
    "training.lr_scheduler": "cosine",
    "model.lora_target_modules": ["q_proj"],
    "model.torch_dtype": "bfloat16",
    "model.model_name_or_path": "c/d",
    "model.use_lora": True,
    "model.gradient_checkpointing": True,
    "model.device": "cpu",
    "training.use_bf16": True,
    "training.use_tensorboard": True,
    "training.mini_batch_size": 16,
    "eval_envs": [{"dataset": "math500"}],
    "processor_func_path": "chain_processor.py",
    "workflow_args.task": "code",
    "reward_alloc.name": "quality",
    "reward_pretrain": "a/reward",
    "policy_loss_type": "gspo",
    "max_samples": 2048,
    "api_base_url": "http://h",
    "model_name": "gpt-8",
    "agent_func_path": "marti/worlds/steps/code_step.py",
    "tools_config.mcp_url": "http://h/mcp",
    "tools_config.timeout": 9.0,
    "workflow_args.coach_model": "claude-9",
    "workflow_args.score_parser": "keywords",
    "verify_task": "gaia",
    "filter_samples_by_reward": True,
    "weave_project": "ours",
    "lr_warmup_steps": 5,
    "workflow_args.coder_max_turns": 4,
    "eval_temperature": 0.3,
}


def other(name: str, default: object) -> object:
    """A value that is not the default."""
    if name.startswith(OWN):
        shared = name.replace(OWN, "actor_rollout_ref.", 1)
        usual = FRAMEWORKS["drmas"].keys[shared].default
        return [other(shared, usual), usual]
    if name in OTHER and OTHER[name] != default:
        return OTHER[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        if default < 0:
            return 5
        return default * 2 + 1 if default < 0.4 or default > 1 else default / 2
    return {"grpo": "rloo", "gae": "grpo", "ppo": "grpo", "math": "code"}.get(str(default), "7")


def table(*fates: str) -> list[tuple[str, str]]:
    return [
        (name, key)
        for name, framework in FRAMEWORKS.items()
        for key, entry in framework.keys.items()
        if entry.fate in fates
    ]


def made(name: str, values: dict) -> tuple[dict, list[tuple[str, str]]]:
    found = translate(values, FRAMEWORKS[name])
    return found.config, [(line.key, line.said) for line in found.refused_lines]


@pytest.mark.parametrize(("name", "key"), table("becomes"))
def test_a_key_that_becomes_something_changes_the_config_or_is_refused(name, key):
    if key == "default_agent":
        return  # its own keys stand on top, as test_importing says
    default = FRAMEWORKS[name].keys[key].default
    values = (other(key, default), "algorithm", 4, "x")
    changed = []
    for file in FILES[name]:
        before = made(name, copy.deepcopy(file))
        for value in values[: 1 if key in OTHER or default is not None else 4]:
            try:
                changed.append(made(name, copy.deepcopy(file) | {key: value}) != before)
            except ConfigError:
                continue
    assert any(changed), f"{key} of {name} is silently dropped"


@pytest.mark.parametrize(("name", "key"), table("refused"))
def test_a_key_that_is_refused_says_so_unless_its_value_loses_nothing(name, key):
    entry = FRAMEWORKS[name].keys[key]
    for file in FILES[name]:
        found = translate(file | {key: "a value of no use"}, FRAMEWORKS[name])
        line = next(line for line in found.lines if line.key == key)
        if line.fate == "refused":
            break
    assert line.fate == "refused"
    assert line.said
    for value in entry.harmless[1:]:
        found = translate(FILES[name][0] | {key: value}, FRAMEWORKS[name])
        assert key not in [line.key for line in found.refused_lines]


@pytest.mark.parametrize(("name", "key"), table("not needed"))
def test_a_key_that_is_not_needed_stands_in_the_table_with_the_reason(name, key):
    found = translate(FILES[name][0] | {key: "something"}, FRAMEWORKS[name])
    line = next(line for line in found.lines if line.key == key)
    assert (line.fate, line.given) == ("not needed", True)
    assert line.said


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, files in FILES.items() for number in range(len(files))],
)
def test_what_is_made_is_a_config_that_fits(name, number):
    found = translate(FILES[name][number], FRAMEWORKS[name])
    if not found.refused_lines:
        check(found.config)
    assert set(found.edits) == set(find_edits(found.config))


def test_a_config_that_does_not_fit_is_refused():
    found = translate(MATH_TEAM, FRAMEWORKS["drmas"])
    set_key(found.config, "workflow.roundz", 3)
    with pytest.raises(ConfigError, match=r"workflow.roundz: unknown key; did you mean rounds"):
        check(found.config)


@pytest.mark.parametrize(
    ("name", "typo", "near"),
    [
        ("drmas", "actor_rollout_ref.actor.grad_clipp", "actor_rollout_ref.actor.grad_clip"),
        ("marti", "rollout_batch_sise", "rollout_batch_size"),
        ("mrlm", "ppo.clip_rang", "ppo.clip_range"),
    ],
)
def test_a_typo_is_refused_with_the_nearest_key(name, typo, near):
    with pytest.raises(ConfigError, match=f"{typo}: no key of .*{near}"):
        translate(FILES[name][0] | {typo: 1}, FRAMEWORKS[name])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workflow_args.num_round": 2}, "workflow_args.num_round: .*num_rounds"),
        ({"tools_config.max_turnz": 2}, "tools_config.max_turnz: .*max_turns"),
        ({"tools_config.tools": {"s": {"url": 1}}}, "tools_config.tools.s.url: .*base_url"),
        (
            {"agents": [{"0": {"role": "generator", "pretrained": "a"}}]},
            "agents.0.pretrained: .*pretrain",
        ),
    ],
)
def test_a_typo_inside_of_a_mapping_is_refused_too(change, said):
    with pytest.raises(ConfigError, match=said):
        translate(CHAIN_RUN | change, FRAMEWORKS["marti"])


def test_dr_mas_becomes_dr_mas_with_the_published_numbers():
    values = SEARCH_TEAM | {f"{ACTOR}.invalid_action_penalty_coef": 0.01, "env.max_steps": 4}
    found = translate(values | {"trainer.total_epochs": 2, "data.train_batch_size": 128},
                      FRAMEWORKS["drmas"])  # fmt: skip
    config = found.config
    assert config["algorithm"]["name"] == "drmas"
    assert list(config["team"]) == ["verifier", "searcher", "answerer"]
    assert config["team"]["searcher"]["invalid_penalty"] == 0.01
    thinkers = [name for name, agent in config["team"].items() if agent.get("require_think_tags")]
    assert thinkers == ["searcher", "answerer"]
    assert "<think>" in config["team"]["searcher"]["system"]
    assert config["workflow"] == {
        "name": "search_team", "max_steps": 4, "on_unparsable": "yes",
        "last_step": "verdict",
    }  # fmt: skip
    assert config["environment"]["url"] == "http://127.0.0.1:8000"
    assert config["trainer"] == {"epochs": 2, "seed": 0}
    assert config["algorithm"]["entropy"] == 0.001  # verl's default, which nobody wrote
    assert len(config["policies"]) == 3
    shared = translate(values | {"agent.model_sharing": True}, FRAMEWORKS["drmas"]).config
    assert list(shared["policies"]) == ["verifier"]
    assert shared["team"]["answerer"]["policy"] == "verifier"


@pytest.mark.parametrize(
    ("change", "algorithm"),
    [
        ({"algorithm.adv_estimator": "gigpo", "algorithm.gamma": 0.95,
          "algorithm.gigpo.mode": "mean_std_norm", "algorithm.gigpo.enable_similarity": True,
          "algorithm.gigpo.similarity_thresh": 0.9},
         {"name": "gigpo", "std": "task", "omega": 1.0, "similarity": 0.9, "gamma": 0.95}),
        ({"algorithm.adv_estimator": "gigpo"}, {"name": "gigpo", "std": "none", "gamma": 1.0}),
        ({"algorithm.adv_estimator": "rloo", "algorithm.group_by_agent_id": False},
         {"name": "rloo", "mean": "task", "count": "episode_agent"}),
        ({"algorithm.adv_estimator": "rloo"}, {"name": "rloo", "mean": "agent"}),
        ({"algorithm.group_by_agent_id": False}, {"name": "grpo", "count": "episode_agent"}),
        ({"algorithm.norm_adv_by_std_in_grpo": False}, {"name": "drmas", "std": "none"}),
        ({"algorithm.adv_estimator": "gae", "algorithm.group_by_agent_id": False},
         {"name": "ppo", "gamma": 1.0, "lam": 1.0}),
        ({"algorithm.adv_estimator": "gae", "algorithm.group_by_agent_id": False,
          "critic.model.path": "e/f", "critic.optim.lr": 1e-5},
         {"name": "ppo_critic", "gamma": 1.0, "lam": 1.0}),
        ({f"{ACTOR}.policy_loss.loss_mode": "gspo"}, {"name": "gspo", "mean": "agent"}),
        ({"algorithm.adv_estimator": "reinforce_plus_plus"}, {"name": "reinforce_pp"}),
    ],
)  # fmt: skip
def test_each_estimator_of_dr_mas_becomes_its_algorithm(change, algorithm):
    found = translate(MATH_TEAM | change, FRAMEWORKS["drmas"])
    assert not found.refused_lines
    assert algorithm.items() <= found.config["algorithm"].items()
    check(found.config)


def test_groups_are_filtered_as_there_whatever_the_algorithm():
    for change in ({f"{ACTOR}.policy_loss.loss_mode": "gspo"}, {}):
        values = MATH_TEAM | {"algorithm.filter_groups.enable": True} | change
        imported = translate(values, FRAMEWORKS["drmas"])
        assert not imported.refused_lines
        assert imported.config["rollout"]["group_filter"] == {}
    values = CHAIN_RUN | {"dynamic_filtering": True, "dynamic_filtering_reward_range": [0.1, 0.9]}
    imported = translate(values, FRAMEWORKS["marti"])
    assert imported.config["rollout"]["group_filter"] == {"above": 0.1, "below": 0.9}
    check(imported.config)


def test_bounds_of_a_correction_are_those_that_are_there():
    """A mask without a lower bound has one over the upper one; a veto is always on there."""
    values = CHAIN_RUN | {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": 4}
    algorithm = translate(values, FRAMEWORKS["marti"]).config["algorithm"]
    assert (algorithm["correction_high"], algorithm["correction_veto"]) == (4, 1e-4)
    assert "correction_low" not in algorithm
    masked = values | {"vllm_is_mode": "mask"}
    imported = translate(masked, FRAMEWORKS["marti"]).config
    assert imported["algorithm"]["correction_low"] == 0.25
    check(imported)


def test_a_target_of_the_kl_and_the_warmup_of_a_critic_are_kept():
    values = CHAIN_RUN | {"advantage_estimator": "gae", "init_kl_coef": 0.1, "kl_target": 6.0}
    values |= {"use_kl_loss": False, "critic_pretrain": "c/d", "freezing_actor_steps": 3}
    config = translate(values, FRAMEWORKS["marti"]).config
    assert (config["algorithm"]["kl_target"], config["algorithm"]["horizon"]) == (6.0, 10_000)
    assert config["trainer"]["critic_warmup"] == 3
    lines = translate(values | {"use_kl_loss": True}, FRAMEWORKS["marti"]).refused_lines
    assert [line.key for line in lines] == ["kl_target"]
    headed = translate(values | {"critic_pretrain": None}, FRAMEWORKS["marti"]).refused_lines
    assert [line.key for line in headed] == ["freezing_actor_steps"]


def test_an_estimator_that_nobody_knows_becomes_no_other_algorithm():
    found = translate(MATH_TEAM | {"algorithm.adv_estimator": "grpo2"}, FRAMEWORKS["drmas"])
    assert not found.refused_lines
    assert found.config["algorithm"]["name"] == EDIT
    assert found.edits["algorithm.name"] == "grpo2 there, which is not known here"


def test_long_prompts_are_left_out_where_they_are_there():
    limited = {"data.max_prompt_length": 8192, "data.truncation": "middle"}
    config = translate(MATH_TEAM | limited, FRAMEWORKS["drmas"]).config
    assert "max_prompt_tokens" not in config["rollout"]
    cut = {"max_tokens": 8192, "side": "middle"}
    assert [agent["truncation"] for agent in config["team"].values()] == [cut, cut]
    limited["data.filter_overlong_prompts"] = True
    config = translate(MATH_TEAM | limited, FRAMEWORKS["drmas"]).config
    assert config["rollout"]["max_prompt_tokens"] == 8192


@pytest.mark.parametrize(("file", "framework"), [(CHAIN_RUN, "marti"), (FIRST_RUN, "marti_v1")])
def test_columns_of_martis_rows_keep_their_names(file, framework):
    named = file | {"input_key": "puzzle", "label_key": "result"}
    columns = translate(named, FRAMEWORKS[framework]).config["environment"]["columns"]
    assert columns == {"question": "puzzle", "answer": "result"}


@pytest.mark.parametrize(
    ("file", "framework", "side"),
    [
        (CHAIN_RUN, "marti", "left"),
        (FIRST_RUN, "marti_v1", "right"),
        (FIRST_RUN | {"async_workflow": True}, "marti_v1", "left"),
    ],
)
def test_marti_cuts_prompts_where_its_version_does(file, framework, side):
    limited = file | {"truncate_prompt": True, "prompt_max_len": 99}
    for agent in translate(limited, FRAMEWORKS[framework]).config["team"].values():
        assert agent["truncation"] == {"max_tokens": 99, "side": side}


def test_marti_agents_keep_the_lines_of_their_prompts_that_name_no_variable():
    found = translate(CHAIN_RUN, FRAMEWORKS["marti"])
    team = found.config["team"]
    assert team["generator"]["system"] == "Think."
    assert "Do not solve the problem" in team["verifier"]["system"]  # ours, as theirs is code
    assert team["refiner"]["trainable"] is False
    assert found.config["trainer"]["epochs"] == 1
    assert found.config["policies"]["verifier"]["optimizer"]["warmup_ratio"] == 0.03
    assert not found.edits


def test_a_computed_value_and_a_missing_team_are_named():
    computed = CHAIN_RUN | {"rollout_batch_size": f"{UNKNOWN}$((16*4)){UNKNOWN}"}
    with pytest.raises(ConfigError, match="the script computes rollout_batch_size"):
        translate(computed, FRAMEWORKS["marti"])
    nobody = {key: value for key, value in CHAIN_RUN.items() if key != "agents"}
    with pytest.raises(ConfigError, match="who is in the team"):
        check(translate(nobody, FRAMEWORKS["marti"]).config)


@pytest.mark.parametrize("env", ["math", "code"])
def test_mrlms_environments_keep_their_reward(env):
    file = MRLM | {"policy_env.env_type": env, "policy_env.reward_scale": 2.0}
    config = translate(file, FRAMEWORKS["mrlm"]).config
    assert config["rewards"] == {f"mrlm_{env}": 2.0}
    assert config["environment"].get("score") == ("share" if env == "code" else None)


def test_mrlm_defaults_are_carried_over():
    config = translate(FILES["mrlm"][1], FRAMEWORKS["mrlm"]).config
    algorithm = config["algorithm"]
    # A response is discounted and not each of its ids; our value loss has a factor of one half.
    assert (algorithm["gamma"], algorithm["gamma_turn"]) == (1.0, 0.99)
    assert (algorithm["epochs"], algorithm["value_coef"]) == (4, 1.0)
    assert config["policies"]["policy"]["optimizer"]["lr"] == 3e-4
    assert config["rollout"] == {"group_size": 1, "groups": 128, "allow_filtered_sampling": True}
    assert algorithm["minibatches"] == 4
    assert config["workflow"] == {"name": "multi_turn", "max_turns": 3}


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("drmas", {"data.train_batch_size": "many"}, "data.train_batch_size: not a number"),
        ("drmas", {"agent.model_sharing": "perhaps"}, "agent.model_sharing: not true or false"),
        ("drmas", {"trainer.save_freq": "x"}, "a value is not what its key takes"),
        ("drmas", {"env.rollout.val_n": f"{UNKNOWN}$(n){UNKNOWN}"}, r"computes it \(\$\(n\)\)"),
        ("marti", {"agents": "x"}, "a value is not what its key takes"),
        ("mrlm", {"training.batch_size": 0}, "a value is not what its key takes"),
    ],
)
def test_a_value_of_another_kind_is_an_error_of_the_file(name, values, said):
    with pytest.raises(ConfigError, match=said):
        translate(FILES[name][0] | values, FRAMEWORKS[name])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mrlm", {"training.eval_every": 5, "output.eval_interval": 7}),
        ("mrlm", {"grpo.temperature": 0.5, "model.temperature": 0.7}),
    ],
)
def test_two_keys_that_contradict_one_another_are_refused(name, values):
    found = translate(FILES[name][0] | values, FRAMEWORKS[name])
    [line] = found.refused_lines
    assert line.key in values
    assert "says otherwise" in line.said


def test_a_key_that_is_secret_is_not_shown():
    found = translate(CHAIN_RUN | {"use_wandb": "s3cret"}, FRAMEWORKS["marti"])
    assert "s3cret" not in repr(found)
    assert found.config["trackers"] == [{"name": "wandb", "project": "openrlhf_train_ppo"}]


def test_an_unreadable_verdict_counts_as_it_does_in_dr_mas():
    made_of = {team: translate(values, FRAMEWORKS["drmas"]).config["workflow"]["on_unparsable"]
               for team, values in (("math", MATH_TEAM), ("search", SEARCH_TEAM))}  # fmt: skip
    assert made_of == {"math": "approve", "search": "yes"}


@pytest.mark.parametrize("filtered", [False, True])
def test_grpo_of_dr_mas_counts_a_trajectory_once(filtered):
    values = MATH_TEAM | {
        "algorithm.group_by_agent_id": False,
        "algorithm.filter_groups.enable": filtered,
    }
    algorithm = translate(values, FRAMEWORKS["drmas"]).config["algorithm"]
    assert algorithm["name"] == ("dapo" if filtered else "grpo")
    assert algorithm["count"] == "episode_agent"


def test_rows_are_kept_where_the_environment_is_not_known():
    values = MATH_TEAM | {"env.env_name": "webshop"}
    found = translate(values, FRAMEWORKS["drmas"])
    assert found.config["environment"]["train"] == "train.parquet"
    assert found.config["environment"]["test"] == "test.parquet"
    assert [line.key for line in found.refused_lines] == ["env.env_name"]


def test_no_value_is_said_to_be_the_default_that_is_not():
    """Without a team there is no policy that a model or a learning rate could be of."""
    values = {
        "data.train_files": "mine.parquet",
        "actor_rollout_ref.model.path": "my/model",
        "actor_rollout_ref.actor.optim.lr": 5e-5,
    }
    found = translate(values, FRAMEWORKS["drmas"])
    fates = {line.key: (line.fate, line.said) for line in found.lines if line.given}
    assert fates["data.train_files"] == ("becomes", "environment.train: mine.parquet")
    for key in ("actor_rollout_ref.model.path", "actor_rollout_ref.actor.optim.lr"):
        assert fates[key][0] == "refused"
        assert "nothing of this file becomes policies.*." in fates[key][1]


def test_what_is_not_the_same_there_is_said_in_the_file_that_is_made():
    text = render(translate(MATH_TEAM, FRAMEWORKS["drmas"]), [Path("run.sh")])
    for what in ("Chinese character", "micro-batch"):
        assert what in text


def test_sampling_of_evaluations_is_carried_over():
    val = {f"{VAL}.temperature": 0.6, f"{VAL}.top_p": 0.95, f"{VAL}.top_k": -1}
    config = translate(MATH_TEAM | val, FRAMEWORKS["drmas"]).config
    assert config["evaluation"]["sampling"] == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 0,
    }  # fmt: skip
    marti = CHAIN_RUN | {"eval_temperature": 0.6, "eval_generate_max_len": 4096}
    config = translate(marti, FRAMEWORKS["marti"]).config
    assert config["evaluation"]["sampling"] == {"temperature": 0.6, "max_tokens": 4096}
