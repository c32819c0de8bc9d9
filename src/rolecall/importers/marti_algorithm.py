"""Translates MARTI's estimators and losses into an algorithm, and its pay into rewards."""

from __future__ import annotations

from pathlib import PurePath

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import EDIT, Given, Tree, set_key, trained_policies
from rolecall.importers.marti_coach import KEYS as COACH_KEYS
from rolecall.importers.marti_coach import build_coach
from rolecall.importers.marti_flows import DEBATE, MATHCHAT, TOOLS, WITH_MEMORY, Flow
from rolecall.importers.marti_keys import NEVER

ESTIMATORS = {
    "gae": "ppo",
    "reinforce": "reinforce_pp",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_baseline": "reinforce_pp_baseline",
    "rloo": "rloo",
    "group_norm": "drmas",
    "dr_grpo": "dr_grpo",
}
# With one ratio for a whole turn (GSPO): whose scores a turn's is measured from and divided by.
GSPO: dict[str, JsonObject] = {
    "reinforce": {"mean": "global", "std": "global", "count": "turn"},
    "reinforce_plus_plus": {"mean": "global", "std": "global", "count": "turn"},
    "reinforce_baseline": {"mean": "agent", "std": "global", "count": "turn"},
    "group_norm": {"mean": "agent", "std": "agent", "count": "turn"},
    "dr_grpo": {"mean": "agent", "std": "none", "count": "turn"},
}
# Those that always divide by the spread of a batch -> what is like them and does not.
WHITENED = {
    "reinforce_pp": "{name: grpo, mean: global, std: none, count: turn}",
    "reinforce_pp_baseline": "{name: grpo, mean: agent, std: none}",
}
CORRECTIONS = {
    ("token", "truncate"): "token_tis",
    ("sequence", "truncate"): "sequence_tis",
    ("token", "mask"): "token_mis",
    ("sequence", "mask"): "sequence_mis",
    ("geometric", "truncate"): "geometric_tis",
    ("geometric", "mask"): "geometric_mis",
}
# Their names of rewards that compare an answer with those before it -> ours.
SHAPES = {
    "margin": ("margin", False),
    "margin_with_outcome": ("margin", True),
    "quality": ("quality", False),
    "conditional_quality": ("quality", False),
    "quality_with_outcome": ("quality", True),
}
SHAPING = ("debate_processor", "chain_processor")  # that compare answers
PLAIN = ("ab_mcts_processor", "default_processor", "mathchat_processor", "dsbench_processor")


def build_algorithm(given: Given, config: Tree) -> str:
    """Set the algorithm and its loss; return its name, EDIT if there is none like it here."""
    estimator, loss = given["advantage_estimator"], given["policy_loss_type"]
    name = given.choose("advantage_estimator", ESTIMATORS, "no such algorithm") or EDIT
    if loss == "gspo" and estimator in GSPO:
        name = "gspo"
        config["algorithm"] = {"name": name, **GSPO[estimator]}
    elif loss != "ppo":
        given.refuse("policy_loss_type", f"no {loss} with {estimator}")
    name = _filter_groups(given, config, name)
    set_key(config, "algorithm.name", name)
    if name == EDIT:
        given.edits["algorithm.name"] = f"an algorithm, {estimator} there"
        _kl(given, config)
        return name
    by_token = given["token_level_loss"] if "token_level_loss" in given.keys else True
    set_key(config, "algorithm.agg", "token" if by_token and name != "gspo" else "turn_mean")
    if name == "dr_grpo":
        set_key(config, "algorithm.mean", "agent")
    if name == "ppo" and not trained_policies(config):
        given.silence(["critic_learning_rate", "critic_pretrain"], "nobody is trained")
    elif name == "ppo" and given["critic_pretrain"]:
        name = "ppo_critic"
        set_key(config, "algorithm.name", name)
        set_key(config, "algorithm.critic_epochs", given["max_epochs"])
        critic = {"base": given["critic_pretrain"], "optimizer": {}}
        set_key(config, "critics.token", critic)
    elif name == "ppo":
        set_key(config, "critics.agent", {"optimizer": {}})
    else:
        unread = ["critic_learning_rate", "critic_pretrain", "lambd"]
        given.silence(unread, f"{name} has no critic")
    _divide(given, config, name)
    if given["gamma"] != 1 and name not in ("ppo", "ppo_critic", "reinforce_pp"):
        given.refuse("gamma", f"{name} discounts nothing")
    _bounds(given, config, name)
    _kl(given, config)
    if (frozen := given["freezing_actor_steps"]) > 0 and name == "ppo_critic":
        set_key(config, "trainer.critic_warmup", frozen)
    elif frozen > 0:
        given.refuse("freezing_actor_steps", "a critic learns alone with critic_pretrain only")
    return name


def _divide(given: Given, config: Tree, name: str) -> None:
    """Set whether advantages are divided by their spread over a batch."""
    key = "no_advantage_std_norm"
    if name not in (*WHITENED, "gspo", "ppo", "ppo_critic"):
        given.silence([key], f"{name} divides by no spread of a batch")
    elif not given[key]:
        return
    elif name == "gspo":
        set_key(config, "algorithm.std", "none")
        given.placed[key] = "algorithm.std"
    elif name in WHITENED:
        given.refuse(key, f"write algorithm: {WHITENED[name]}")
    else:
        set_key(config, "algorithm.whiten", False)
        given.notes[key] = "their mean is not taken off either"


def _filter_groups(given: Given, config: Tree, name: str) -> str:
    """Leave out groups as there; return the algorithm, which one agent's is if it does that."""
    names = ("dynamic_filtering", "filter_samples_by_reward")
    key = next((key for key in names if key in given.keys and given[key]), "")
    bounds = "dynamic_filtering_reward_range"
    low, high = given[bounds] if bounds in given.keys else (0, 1)
    if not key:
        given.silence([bounds], "groups are not filtered")
        return name
    if name == "drmas" and len(config["team"]) == 1 and (low, high) == (0, 1):
        given.placed[key] = "algorithm.name"
        given.silence([bounds], "dapo leaves out groups whose attempts all earned the same")
        return "dapo"
    set_key(config, "rollout.group_filter", {"above": low, "below": high})
    return name


def _bounds(given: Given, config: Tree, name: str) -> None:
    """Bounds of rewards, and what long turns pay."""
    low, high = given["reward_clip_range"]
    if name.startswith("reinforce_pp"):
        set_key(config, "algorithm.reward_clip", high)
        if low != -high:
            given.refuse("reward_clip_range", "scores are bounded alike on both sides")
    else:
        given.silence(["reward_clip_range"], f"{name} bounds no scores")
    length = given["overlong_buffer_len"] if "overlong_buffer_len" in given.keys else None
    if name == "dapo":
        set_key(
            config, "algorithm.length_cache" if length else "algorithm.longest", length or NEVER
        )
        given.placed["overlong_buffer_len"] = "algorithm.length_cache"
    elif length:
        overlong = {
            "longest": given["generate_max_len"],
            "buffer": int(length),
            "factor": float(given["overlong_penalty_factor"]),
        }
        config.setdefault("rewards", {"correct": 1.0})["overlong"] = overlong
    if name == "dapo" or not length:
        given.silence(["overlong_penalty_factor"], "no turn is too long")


def build_correction(given: Given, config: Tree) -> None:
    """Set the weight for what engine and learner disagree on, which version 2 has."""
    if not given["enable_vllm_is_correction"]:
        set_key(config, "algorithm.correction", "none")
        unread = [key for key in given.keys if key.startswith("vllm_is_")]
        given.silence(unread, "it is not enabled")
        return
    kind = CORRECTIONS.get((given["vllm_is_level"], given["vllm_is_mode"]))
    if kind is None:
        given.refuse("vllm_is_level", f"no weight of this level in mode {given['vllm_is_mode']}")
    set_key(config, "algorithm.correction", kind or "token_tis")
    high, low = given["vllm_is_truncated_threshold"], given["vllm_is_truncated_threshold_lower"]
    set_key(config, "algorithm.correction_high", high)
    set_key(config, "algorithm.correction_veto", given["vllm_is_veto_threshold"])
    if given["vllm_is_mode"] == "mask":
        set_key(config, "algorithm.correction_low", 1 / high if low is None else low)
    else:
        given.silence(["vllm_is_truncated_threshold_lower"], "vllm_is_mode is truncate")


def _kl(given: Given, config: Tree) -> None:
    coefficient = given["init_kl_coef"]
    set_key(config, "algorithm.kl", coefficient)
    form = "kl_estimator" if "kl_estimator" in given.keys else "use_kl_estimator_k3"
    adaptive = [key for key in ("kl_target", "kl_horizon") if key in given.keys]
    if not coefficient:
        given.silence(["use_kl_loss", form, *adaptive], "init_kl_coef is 0")
        return
    kind = {True: "k3", False: "k1"}.get(given[form], given[form])
    set_key(config, "algorithm.kl_in", "loss" if given["use_kl_loss"] else "reward")
    target = given["kl_target"]
    if target is None:
        given.silence(adaptive, "kl_target is not set")
    elif given["use_kl_loss"]:
        given.refuse("kl_target", "only a KL in the reward follows a target: drop use_kl_loss")
    else:
        set_key(config, "algorithm.kl_target", target)
        if "kl_horizon" in given.keys:
            set_key(config, "algorithm.horizon", given["kl_horizon"])
    if given["use_kl_loss"]:
        set_key(config, "algorithm.kl_form", kind)
    elif kind != "k1":
        given.refuse(form, "the KL in the reward is old - ref, k1")
    for name in trained_policies(config):
        config["policies"][name]["reference"] = "initial"


def build_rewards(given: Given, config: Tree, flow: Flow) -> None:
    """Set what answers earn: a coach's score, or what they are worth and how far above others."""
    if flow.coached and "workflow_args.coach_model" in given.keys:
        build_coach(given, config, shown_truth=flow.coached, roles=flow.roles)
    else:
        unread = [f"workflow_args.{key}" for key in COACH_KEYS]
        given.silence([key for key in unread if key in given.keys], f"{flow.name} has no coach")
    if flow is not TOOLS:
        given.silence(["reward_alloc.use_ttrl"], "the code of teams reads `ttrl` instead")
    is_paid = bool(flow.coached) or flow in WITH_MEMORY
    shape, alpha, final = _shape(given, is_paid=is_paid)
    if flow.own_pay or shape:
        own: Tree = {"shape": shape, "alpha": alpha, "final": final} if shape else {}
        if flow is MATHCHAT:
            own["printed"] = [*flow.executors]
        config["rewards"] = {"own_answers": own}
    if shape and flow is DEBATE:
        set_key(config, "workflow.earns", "outcome")  # the reward pays the answers instead
    if flow is TOOLS and given["reward_alloc.use_ttrl"]:
        config["rewards"] = {"majority": 1.0}
    if (urls := given["remote_rm_url"]) and not flow.coached:
        _ask_remote_model(given, config, urls)
    elif given["reward_pretrain"] and not flow.coached:
        config["rewards"] = {"reward_model": {"model": given["reward_pretrain"]}}


def _ask_remote_model(given: Given, config: Tree, urls: JsonValue) -> None:
    """Let a server pay each action, as it scores each agent's samples there."""
    listed = urls if isinstance(urls, list) else [urls]
    if len(listed) > 1 or str(listed[0]).endswith(".py"):
        given.refuse("remote_rm_url", "one server, or a reward of your own in a file of Python")
        return
    config["rewards"] = {"remote_model": {"url": str(listed[0]), "scores": "actions"}}


def _shape(given: Given, *, is_paid: bool) -> tuple[str, float, float]:
    """Return shape, alpha and final of `own_answers`; "" where answers are not compared.

    is_paid: whether a coach or the workflow pays the turns.
    """
    processor = PurePath(str(given["processor_func_path"] or "")).stem
    keys = ["reward_alloc.name", "reward_alloc.alpha", "reward_alloc.beta"]
    if processor and processor not in (*SHAPING, *PLAIN):
        given.refuse("processor_func_path", "write a reward of your own: docs/extend.md")
    in_graph = "agent_workflow" in given.keys and "async_workflow" in given.keys
    compares = processor in SHAPING or (in_graph and not given["workflow_func_path"])
    if not compares or is_paid or given["reward_alloc.name"] is None:
        given.silence(keys, "nothing there reads it with this processor")
        return "", 0.0, 0.0
    chosen = given.choose("reward_alloc.name", SHAPES, "no such shape")
    if chosen is None:
        return "", 0.0, 0.0
    shape, with_outcome = chosen
    if not with_outcome:
        given.silence(["reward_alloc.beta"], f"{given['reward_alloc.name']} does not read it")
    return shape, given["reward_alloc.alpha"], given["reward_alloc.beta"] if with_outcome else 0.0
