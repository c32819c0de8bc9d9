"""Makes a config of ours from a script of Dr. MAS: its maths or its search team."""

from __future__ import annotations

import yaml

from rolecall.config.load import find
from rolecall.importers.drmas_keys import KEYS
from rolecall.importers.keys import Framework, Given, OwnValue, Tree, is_unknown, set_key
from rolecall.importers.verl_names import ACTOR, BASE, MODEL, NEVER, OWN
from rolecall.importers.verl_parts import (
    ESTIMATOR,
    ESTIMATORS,
    build_policy,
    choose_algorithm,
    set_algorithm,
    set_amounts,
    set_loss,
    set_reward_model,
    set_rows,
    set_trackers,
)

# their agents, by the part that they play -> ours; system prompts are those of our recipes
TEAMS = {
    "math": ("solver_verifier", "drmas_math", {"Solver Agent": "solver",
                                               "Verifier Agent": "verifier"}),
    "search": ("search_team", "drmas_search", {"Verifier Agent": "verifier",
                                               "Search Agent": "searcher",
                                               "Answer Agent": "answerer"}),
}  # fmt: skip
# Whose turns are invalid there without one thought in tags, and what asks for it.
THINKERS = ("searcher", "answerer")
THINK = "Reason first, between <think> and </think>."
# What an unreadable verdict counts as there.
UNREADABLE = {"solver_verifier": "approve", "search_team": "yes"}
RIGHT = 0.5  # least reward of a right attempt, less what unreadable turns cost
DIFFERS = (
    "An unreadable verdict counts as there: `on_unparsable` is approve for maths, yes for search.",
    "A turn has its form if the last complete tag after its thinking can be read, in upper or "
    "lower case; there the first tag counts, also inside of thinking, in lower case, and any "
    "Chinese character makes a turn invalid.",
    "Means of the loss run over a whole minibatch; there over each micro-batch, then over these.",
)


def build(given: Given) -> Tree:
    """Return the team of a maths or search script, with the system prompts of our own recipe."""
    config: Tree = {"team": {}, "policies": {}}
    flows = {name: flow for name, (flow, _, _) in TEAMS.items()}
    flow = given.choose("agent.orchestra_type", flows, "no such team")
    if flow is None:
        given.mark_missing(config, "workflow.name", "how the agents talk")
    else:
        set_key(config, "workflow.name", flow)
        set_key(config, "workflow.on_unparsable", UNREADABLE[flow])
        if flow == "search_team":
            set_key(config, "workflow.last_step", "verdict")
        _team(given, config)
    _environment(given, config)
    _algorithm(given, config)
    set_reward_model(given, config)
    set_amounts(given, config, samples="env.rollout.val_n")
    set_trackers(given, config)
    return config


def _team(given: Given, config: Tree) -> None:
    _, recipe, roles = TEAMS[given["agent.orchestra_type"]]
    system = {n: a["system"] for n, a in yaml.safe_load(find(recipe).read_text())["team"].items()}
    theirs = given["agent.agent_ids"] or list(roles)
    models = given["agent.model_ids"] or [given[f"{MODEL}.path"]] * len(theirs)
    if is_unknown(models):
        models = [None] * len(theirs)
    if len(theirs) != len(models):
        given.refuse("agent.model_ids", f"not one for each of {len(theirs)} agents")
        models = models[:1] * len(theirs)
    penalty = 0.0
    if given[f"{ACTOR}.use_invalid_action_penalty"]:
        penalty = given[f"{ACTOR}.invalid_action_penalty_coef"]
    owner: dict[str, str] = {}  # model -> the first agent that speaks with it
    for theirs_name, model in zip(theirs, models, strict=True):
        name = roles.get(theirs_name)
        if name is None:
            given.refuse("agent.agent_ids", f"no {theirs_name!r} in {config['workflow']['name']}")
            continue
        policy = owner.setdefault(str(model), name) if given["agent.model_sharing"] else name
        config["team"][name] = {"policy": policy, "system": system[name]}
        if name in THINKERS:
            thinking = {"system": f"{system[name]} {THINK}", "require_think_tags": True}
            config["team"][name] |= thinking
        if penalty:
            config["team"][name]["invalid_penalty"] = penalty
        if policy == name:
            config["policies"][name] = build_policy(given, model, given[f"{ACTOR}.optim.lr"])
    if None in models:
        for name in config["policies"]:
            given.mark_missing(config, f"policies.{name}.base", "the model")
    _note_own_values(given, [roles.get(name, "") for name in theirs])


def _note_own_values(given: Given, agents: list[str]) -> None:
    """Note what is listed with one value for each agent."""
    for name in given.values:
        key = given.keys[name]
        if not name.startswith(f"{OWN}.") or not key.ours:
            continue
        listed = given[name] if isinstance(given[name], list) else [given[name]]
        if len(listed) != len(agents):
            given.refuse(name, f"{len(listed)} values for {len(agents)} agents")
            continue
        theirs = name.replace(OWN, BASE, 1)
        given.own += [
            OwnValue(agent, theirs, value, listed=name)
            for agent, value in zip(agents, listed, strict=True)
            if agent
        ]


def _environment(given: Given, config: Tree) -> None:
    environments = {"math": "math", "search": "search"}
    name = given.choose("env.env_name", environments, "no such environment")
    if name is None:
        given.mark_missing(config, "environment.name", "what the team works on")
    else:
        set_key(config, "environment.name", name)
    set_rows(given, config)
    if name == "search":
        _search(given, config)
    else:
        search = [key for key in KEYS if key.startswith("env.search.")]
        unread = (*search, "env.max_steps", "env.history_length", "agent.use_agent_memory")
        given.silence(unread, "env.env_name is math")
    if config["workflow"]["name"] != "solver_verifier":
        given.silence(["agent.orchestra.math.max_loop_num"], "agent.orchestra_type is not math")
    if config["workflow"]["name"] != "search_team":
        given.silence(["env.max_steps", "env.history_length"], "agent.orchestra_type is not search")


def _search(given: Given, config: Tree) -> None:
    """Set the servers that are searched, and what agents see of earlier searches."""
    urls = given["env.search.search_url"]
    if urls is None or is_unknown(urls):
        given.mark_missing(config, "environment.url", "the retrieval server")
    else:
        listed = urls if isinstance(urls, list) else [urls]
        addresses = [str(url).removesuffix("/retrieve") for url in listed]
        set_key(config, "environment.url", addresses if len(addresses) > 1 else addresses[0])
    set_key(config, "environment.dialect", "single")
    if given["agent.use_agent_memory"]:  # each sees what it said itself, in place of the history
        for agent in config["team"].values():
            agent["memory"] = True
        given.silence(["env.history_length"], "agent.use_agent_memory takes its place")
        set_key(config, "workflow.history", 0)


def _algorithm(given: Given, config: Tree) -> None:
    by_agent = bool(given["algorithm.group_by_agent_id"])
    name = _choose_algorithm(given, by_agent=by_agent)
    set_algorithm(given, config, name)
    if name in ("grpo", "dapo", "rloo", "gspo"):
        set_key(config, "algorithm.count", "episode_agent")  # a trajectory is one sample there
    if name in ("rloo", "gspo"):
        set_key(config, "algorithm.mean", "agent" if by_agent else "task")
    if name in ("grpo", "drmas", "dapo", "gspo") and not given["algorithm.norm_adv_by_std_in_grpo"]:
        set_key(config, "algorithm.std", "none")
    if name == "dapo":  # no soft limit of length there
        set_key(config, "algorithm.longest", NEVER)
    if name == "pass_at_k":
        _pass_at_k(given, config)
    if given["algorithm.filter_groups.enable"] and name != "dapo":
        set_key(config, "rollout.group_filter", {})
    if name == "ppo_critic" and given["trainer.critic_warmup"]:
        set_key(config, "trainer.critic_warmup", given["trainer.critic_warmup"])
    elif name == "ppo" and given["trainer.critic_warmup"]:
        given.refuse("trainer.critic_warmup", "a critic learns alone with critic.model.path only")
    elif name not in ("ppo", "ppo_critic"):
        given.silence(["trainer.critic_warmup"], f"{name} has no critic")
    _gigpo(given, config, name, by_agent=by_agent)
    reads = {
        "ppo": ("gamma", "lam"),
        "ppo_critic": ("gamma", "lam"),
        "gigpo": ("gamma",),
        "reinforce_pp": ("gamma",),
    }
    for key in ("gamma", "lam"):
        if key not in reads.get(name or "", ()):
            given.silence([f"algorithm.{key}"], f"{name} does not read it, there as here")
    set_loss(given, config)


def _choose_algorithm(given: Given, *, by_agent: bool) -> str | None:
    """Return our algorithm, or None for an estimator that is not known."""
    own = {
        "gigpo": "gigpo",
        "grpo": "drmas" if by_agent else "grpo",
        "grpo_passk": "pass_at_k",
    }
    name = choose_algorithm(given, ESTIMATORS | own)
    if given["algorithm.filter_groups.enable"] and name == "grpo":
        given.placed["algorithm.filter_groups.enable"] = "algorithm.name"
        return "dapo"
    if by_agent and name in ("ppo", "ppo_critic"):
        given.refuse("algorithm.group_by_agent_id", "PPO compares with its values")
    return name


def _pass_at_k(given: Given, config: Tree) -> None:
    """Credit the only right attempt of a group, as there, where it is worth what it adds to it."""
    set_key(config, "algorithm.k", max(1, given["env.rollout.n"] - 1))
    set_key(config, "algorithm.right", RIGHT)
    given.warn(
        ESTIMATOR,
        "pass_at_k with one attempt less than a group also lowers the wrong attempts of a group "
        "with one right attempt, each agent by itself; there the best attempt alone has credit",
    )
    if not given["algorithm.norm_adv_by_std_in_grpo"]:
        because = "pass_at_k divides by the spread of a group"
        given.refuse("algorithm.norm_adv_by_std_in_grpo", because)


def _gigpo(given: Given, config: Tree, name: str | None, *, by_agent: bool) -> None:
    """Set what GiGPO alone reads."""
    if name != "gigpo":
        unread = [key for key in KEYS if key.startswith("algorithm.gigpo.")]
        given.silence(unread, f"{ESTIMATOR} is not gigpo")
        return
    if not by_agent:
        given.refuse("algorithm.group_by_agent_id", "gigpo compares each agent with itself: True")
    modes = {"mean_norm": "none", "mean_std_norm": "task"}
    mode = given.choose("algorithm.gigpo.mode", modes, "no such mode")
    set_key(config, "algorithm.std", mode or "none")
    set_key(config, "algorithm.omega", given["algorithm.gigpo.step_advantage_w"])
    if given["algorithm.gigpo.enable_similarity"]:
        set_key(config, "algorithm.similarity", given["algorithm.gigpo.similarity_thresh"])
    else:
        unread = ["algorithm.gigpo.similarity_thresh"]
        given.silence(unread, "algorithm.gigpo.enable_similarity is not set")


FRAMEWORK = Framework(
    name="drmas",
    title="Dr. MAS",
    marks=(
        "actor_rollout_ref",
        "verl.trainer",
        "agent.orchestra",
        "orchestra_type",
        "agent.model_ids",
    ),
    own_marks=("agent.agent_ids", "agent.model", "orchestra"),
    keys=KEYS,
    build=build,
    differs=DIFFERS,
)
