"""Makes a config of ours from a script of Dr. MAS: its maths or its search team."""

from __future__ import annotations

import yaml

from rolecall.config.load import find
from rolecall.core.json_types import JsonValue
from rolecall.importers.drmas_keys import ACTOR, KEYS, MODEL, NEVER, OWN, PROMPTS, ROLLOUT
from rolecall.importers.keys import EDIT, Framework, Given, Tree, is_unknown, set_key, show_value

# their agents, by the part that they play -> ours; system prompts are those of our recipes
TEAMS = {
    "math": ("solver_verifier", "drmas_math", {"Solver Agent": "solver",
                                               "Verifier Agent": "verifier"}),
    "search": ("search_team", "drmas_search", {"Verifier Agent": "verifier",
                                               "Search Agent": "searcher",
                                               "Answer Agent": "answerer"}),
}  # fmt: skip
ESTIMATOR = "algorithm.adv_estimator"
ESTIMATORS = {
    "grpo": "grpo",
    "rloo": "rloo",
    "gae": "ppo",
    "gigpo": "gigpo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}
AGGREGATIONS = {"token-mean": "token", "seq-mean-token-mean": "turn_mean"}
FORMS = {"low_var_kl": "k3", "kl": "k1", "mse": "k2", "k1": "k1", "k2": "k2", "k3": "k3"}
# What an unreadable verdict counts as there.
UNREADABLE = {"solver_verifier": "approve", "search_team": "yes"}
DIFFERS = (
    "An unreadable verdict counts as there: `on_unparsable` is approve for maths, yes for search.",
    "A prompt that is longer than data.max_prompt_length is cut there; here it stays whole.",
    "A turn has its form if the last complete tag after its thinking can be read, in upper or "
    "lower case; there the first tag counts, also inside of thinking, in lower case, and any "
    "Chinese character makes a turn invalid.",
    "Means of the loss run over a whole minibatch; there over each micro-batch, then over these.",
)
TRACKERS = ("wandb", "mlflow", "tensorboard", "trackio")


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
    _amounts(given, config)
    _trackers(given, config)
    return config


def _team(given: Given, config: Tree) -> None:
    _, recipe, roles = TEAMS[given["agent.orchestra_type"]]
    system = {n: a["system"] for n, a in yaml.safe_load(find(recipe).read_text())["team"].items()}
    theirs = given["agent.agent_ids"] or list(roles)
    models = given["agent.model_ids"] or [given[f"{MODEL}.path"]] * len(theirs)
    if is_unknown(models):
        models = [None] * len(theirs)
    rates = given[f"{OWN}.optim.lr"] or given[f"{ACTOR}.optim.lr"]
    rates = rates if isinstance(rates, list) else [rates] * len(theirs)
    if not len(theirs) == len(models) == len(rates):
        given.refuse("agent.model_ids", f"not one for each of {len(theirs)} agents")
        models, rates = models[:1] * len(theirs), rates[:1] * len(theirs)
    penalty = 0.0
    if given[f"{ACTOR}.use_invalid_action_penalty"]:
        penalty = given[f"{ACTOR}.invalid_action_penalty_coef"]
    owner: dict[str, str] = {}  # model -> the first agent that speaks with it
    for theirs_name, model, rate in zip(theirs, models, rates, strict=True):
        name = roles.get(theirs_name)
        if name is None:
            given.refuse("agent.agent_ids", f"no {theirs_name!r} in {config['workflow']['name']}")
            continue
        policy = owner.setdefault(str(model), name) if given["agent.model_sharing"] else name
        config["team"][name] = {"policy": policy, "system": system[name]}
        if penalty:
            config["team"][name]["invalid_penalty"] = penalty
        if policy == name:
            config["policies"][name] = _policy(given, model, rate)
    if None in models:
        for name in config["policies"]:
            given.mark_missing(config, f"policies.{name}.base", "the model")


def _policy(given: Given, model: JsonValue, rate: JsonValue) -> Tree:
    optimizer: Tree = {"lr": rate}
    warmup = given[f"{ACTOR}.optim.lr_warmup_steps"]
    if warmup is not None and warmup > 0:
        optimizer["warmup_steps"] = warmup
    styles = {"constant": "constant", "cosine": "cosine"}
    style = given.choose(f"{ACTOR}.optim.warmup_style", styles, "no such schedule")
    if style == "cosine":
        optimizer["schedule"] = style
    policy: Tree = {"base": model, "optimizer": optimizer}
    if given[f"{MODEL}.lora_rank"]:
        policy["adapter"] = {
            "rank": given[f"{MODEL}.lora_rank"],
            "alpha": given[f"{MODEL}.lora_alpha"],
            "targets": given[f"{MODEL}.target_modules"],
        }
    else:
        given.silence([f"{MODEL}.lora_alpha", f"{MODEL}.target_modules"], "lora_rank is 0")
    return policy


def _environment(given: Given, config: Tree) -> None:
    environments = {"math": "math", "search": "search"}
    name = given.choose("env.env_name", environments, "no such environment")
    if name is None:
        given.mark_missing(config, "environment.name", "what the team works on")
    else:
        set_key(config, "environment.name", name)
    for key, split in (("data.train_files", "train"), ("data.val_files", "test")):
        if given[key] is None or is_unknown(given[key]):
            given.mark_missing(
                config, f"environment.{split}", f"rows, {show_value(given[key])} there"
            )
        else:
            set_key(config, f"environment.{split}", given[key])
    url = given["env.search.search_url"]
    if name == "search":
        if url is None or is_unknown(url):
            given.mark_missing(config, "environment.url", "the retrieval server")
        else:
            set_key(config, "environment.url", str(url).removesuffix("/retrieve"))
        set_key(config, "environment.dialect", "single")
    else:
        unread = ("env.search.search_url", "env.max_steps", "env.history_length")
        given.silence(unread, "env.env_name is math")
    if config["workflow"]["name"] != "solver_verifier":
        given.silence(["agent.orchestra.math.max_loop_num"], "agent.orchestra_type is not math")
    if config["workflow"]["name"] != "search_team":
        given.silence(["env.max_steps", "env.history_length"], "agent.orchestra_type is not search")


def _algorithm(given: Given, config: Tree) -> None:
    by_agent = bool(given["algorithm.group_by_agent_id"])
    name = _choose_algorithm(given, by_agent=by_agent)
    if name is None:
        given.mark_missing(
            config,
            "algorithm.name",
            f"{show_value(given[ESTIMATOR])} there, which is not known here",
        )
        given.silence([ESTIMATOR, f"{ACTOR}.policy_loss.loss_mode"], "algorithm.name is to fill in")
        name = EDIT
    set_key(config, "algorithm.name", name)
    if name in ("grpo", "dapo", "rloo", "gspo"):
        set_key(config, "algorithm.count", "episode_agent")  # a trajectory is one sample there
    if name in ("rloo", "gspo"):
        set_key(config, "algorithm.mean", "agent" if by_agent else "task")
    if name in ("grpo", "drmas", "dapo", "gspo") and not given["algorithm.norm_adv_by_std_in_grpo"]:
        set_key(config, "algorithm.std", "none")
    if name == "dapo":  # no soft limit of length there
        set_key(config, "algorithm.longest", NEVER)
    _gigpo(given, config, name, by_agent=by_agent)
    if name == "ppo":
        set_key(config, "critics.agent", {"optimizer": {}})
    elif name == "ppo_critic":
        set_key(config, "critics.token", {"base": given["critic.model.path"], "optimizer": {}})
    else:
        unread = [key for key in KEYS if key.startswith("critic.")]
        given.silence(unread, f"{name} has no critic")
    reads = {
        "ppo": ("gamma", "lam"),
        "ppo_critic": ("gamma", "lam"),
        "gigpo": ("gamma",),
        "reinforce_pp": ("gamma",),
    }
    for key in ("gamma", "lam"):
        if key not in reads.get(name, ()):
            given.silence([f"algorithm.{key}"], f"{name} does not read it, there as here")
    agg = given.choose(f"{ACTOR}.loss_agg_mode", AGGREGATIONS, "no such mean")
    set_key(config, "algorithm.agg", agg or "token")
    for side in ("low", "high"):
        clip = given[f"{ACTOR}.clip_ratio_{side}"]
        set_key(
            config, f"algorithm.clip_{side}", given[f"{ACTOR}.clip_ratio"] if clip is None else clip
        )
    _kl(given, config)


def _choose_algorithm(given: Given, *, by_agent: bool) -> str | None:
    """Return our algorithm, or None for an estimator that is not known."""
    estimators = {**ESTIMATORS, "grpo": "drmas" if by_agent else "grpo"}
    name = estimators.get(given[ESTIMATOR])
    loss = given[f"{ACTOR}.policy_loss.loss_mode"]
    if loss == "gspo" and given[ESTIMATOR] == "grpo":
        return "gspo"
    if loss != "vanilla":
        given.refuse(f"{ACTOR}.policy_loss.loss_mode", f"no loss {loss!r} with {name}")
    if given["algorithm.filter_groups.enable"]:
        if name == "grpo":
            return "dapo"
        given.refuse("algorithm.filter_groups.enable", f"{name} does not filter groups")
    if name == "ppo":
        if by_agent:
            given.refuse("algorithm.group_by_agent_id", "PPO compares with its values")
        return "ppo_critic" if given["critic.model.path"] else "ppo"
    return name


def _gigpo(given: Given, config: Tree, name: str, *, by_agent: bool) -> None:
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


def _kl(given: Given, config: Tree) -> None:
    """Set the KL as a loss, or within the reward, or none."""
    loss = ("kl_loss_coef", "kl_loss_type")
    in_loss, in_reward = given[f"{ACTOR}.use_kl_loss"], given["algorithm.use_kl_in_reward"]
    if in_loss and in_reward:
        given.refuse("algorithm.use_kl_in_reward", "the KL is a loss or in the reward, not both")
    if in_loss:
        set_key(config, "algorithm.kl", given[f"{ACTOR}.kl_loss_coef"])
        set_key(config, "algorithm.kl_in", "loss")
        form = given.choose(f"{ACTOR}.kl_loss_type", FORMS, "no such estimator")
        set_key(config, "algorithm.kl_form", form or "k3")
    else:
        given.silence([f"{ACTOR}.{key}" for key in loss], "use_kl_loss is not set")
    if in_reward and not in_loss:
        set_key(config, "algorithm.kl", given["algorithm.kl_ctrl.kl_coef"])
        set_key(config, "algorithm.kl_in", "reward")
    else:
        unread = [key for key in KEYS if key.startswith("algorithm.kl_")]
        given.silence(unread, "use_kl_in_reward is not set")
    if not in_loss and not in_reward:
        set_key(config, "algorithm.kl", 0.0)
    else:
        for policy in config["policies"].values():
            policy["reference"] = "initial"


def _amounts(given: Given, config: Tree) -> None:
    steps = given["trainer.total_training_steps"] or given.steps
    if steps:
        set_key(config, "trainer.steps", steps)
        given.silence(["trainer.total_epochs"], "trainer.total_training_steps says it")
    else:
        set_key(config, "trainer.epochs", given["trainer.total_epochs"])
    limit = ("data.max_prompt_length", "data.filter_overlong_prompts")
    if given[limit[1]]:
        set_key(config, "rollout.max_prompt_tokens", given[limit[0]])
    else:
        given.silence(limit, f"no task is left out; {PROMPTS}")
    save, every = given["trainer.save_freq"], given["trainer.test_freq"]
    if save is not None:
        set_key(config, "trainer.save_every", save if save > 0 else NEVER)
    if every is not None:
        set_key(config, "evaluation.every", max(0, every))
    set_key(config, "evaluation.tasks", NEVER)
    samples = given["env.rollout.val_n"]
    set_key(config, "evaluation.samples", samples)
    set_key(config, "evaluation.k", samples)
    _sampling(given, config)
    if not given[f"{ROLLOUT}.val_kwargs.do_sample"]:
        set_key(config, "evaluation.greedy", True)
        if samples > 1:
            given.refuse(
                f"{ROLLOUT}.val_kwargs.do_sample", "attempts without sampling are the same"
            )
    else:
        given.silence([f"{ROLLOUT}.val_kwargs.do_sample"], "evaluation samples here, too")


def _sampling(given: Given, config: Tree) -> None:
    """Set the sampling of training, and what evaluations draw otherwise."""
    top_p, top_k = given[f"{ROLLOUT}.top_p"], max(0, given[f"{ROLLOUT}.top_k"])
    for agent in config["team"].values():
        agent["sampling"] = {} | ({"top_p": top_p} if top_p < 1 else {})
        agent["sampling"] |= {"top_k": top_k} if top_k else {}
    if top_p < 1 or top_k:
        set_key(config, "rollout.allow_filtered_sampling", True)
    names = ("temperature", "top_p", "top_k")
    if not given[f"{ROLLOUT}.val_kwargs.do_sample"]:
        given.silence([f"{ROLLOUT}.val_kwargs.{name}" for name in names], "do_sample is not set")
        return
    for name in names:
        value = given[f"{ROLLOUT}.val_kwargs.{name}"]
        if value is not None:
            set_key(
                config, f"evaluation.sampling.{name}", max(0, value) if name == "top_k" else value
            )


def _trackers(given: Given, config: Tree) -> None:
    folder, name = given["trainer.default_local_dir"], given["trainer.experiment_name"]
    if is_unknown(name) or is_unknown(folder):
        given.silence(["trainer.experiment_name", "trainer.default_local_dir"],
                      "computed by the script; a run folder is runs/NAME of the file")  # fmt: skip
    elif folder or name:
        config["output"] = folder or f"runs/{name}"
    if "trainer.logger" not in given.values:
        given.silence(["trainer.logger", "trainer.project_name"], "no logger is named")
        return
    loggers = given["trainer.logger"]
    loggers = loggers if isinstance(loggers, list) else [loggers]
    config["trackers"] = [
        {"name": logger, "project": given["trainer.project_name"]} if logger == "wandb" else logger
        for logger in loggers
        if logger in TRACKERS
    ]
    for logger in loggers:
        if logger not in (*TRACKERS, "console"):
            given.refuse(
                "trainer.logger", f"no tracker {logger!r}; there are {', '.join(TRACKERS)}"
            )
    if "wandb" not in loggers:
        given.silence(["trainer.project_name"], "wandb is not among the loggers")


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
    own_marks=("agent.", "orchestra"),
    keys=KEYS,
    build=build,
    differs=DIFFERS,
)
