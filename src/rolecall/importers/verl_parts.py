"""Translates what a script of Dr. MAS shares with one of plain verl."""

from __future__ import annotations

from collections.abc import Mapping

from rolecall.core.json_types import JsonValue
from rolecall.importers.drmas_keys import KEYS
from rolecall.importers.keys import Given, Tree, is_unknown, set_key, set_truncation, show_value
from rolecall.importers.verl_names import ACTOR, MODEL, NEVER, PROMPTS, ROLLOUT

ESTIMATOR, LOSS = "algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"
ESTIMATORS = {
    "grpo": "grpo",
    "gae": "ppo",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}
AGGREGATIONS = {"token-mean": "token", "seq-mean-token-mean": "turn_mean"}
FORMS = {"low_var_kl": "k3", "kl": "k1", "mse": "k2", "k1": "k1", "k2": "k2", "k3": "k3"}
SCHEDULES = {"constant": "constant", "cosine": "cosine"}
TRACKERS = ("wandb", "mlflow", "tensorboard", "trackio")


def build_policy(given: Given, model: JsonValue, rate: JsonValue) -> Tree:
    """Return a policy with its optimizer, schedule and adapter."""
    optimizer: Tree = {"lr": rate}
    warmup = given[f"{ACTOR}.optim.lr_warmup_steps"]
    if warmup is not None and warmup > 0:
        optimizer["warmup_steps"] = warmup
        ratio = [f"{ACTOR}.optim.lr_warmup_steps_ratio"]
        given.silence(ratio, "lr_warmup_steps says it")
    elif given[f"{ACTOR}.optim.lr_warmup_steps_ratio"]:
        optimizer["warmup_ratio"] = given[f"{ACTOR}.optim.lr_warmup_steps_ratio"]
    style = given.choose(f"{ACTOR}.optim.warmup_style", SCHEDULES, "no such schedule")
    if style == "cosine":
        optimizer["schedule"] = style
        if least := given[f"{ACTOR}.optim.min_lr_ratio"]:
            optimizer["min_lr_ratio"] = least
    else:
        cosine = [f"{ACTOR}.optim.{name}" for name in ("min_lr_ratio", "num_cycles")]
        given.silence(cosine, "warmup_style is constant")
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


def choose_algorithm(given: Given, estimators: Mapping[str, str]) -> str | None:
    """Return our algorithm of an estimator and a loss, or None for an estimator not known here."""
    name, loss = estimators.get(given[ESTIMATOR]), given[LOSS]
    if loss == "gspo" and given[ESTIMATOR] == "grpo":
        return "gspo"
    if loss != "vanilla":
        given.refuse(LOSS, f"no loss {loss!r} with {name}")
    return "ppo_critic" if name == "ppo" and given["critic.model.path"] else name


def set_algorithm(given: Given, config: Tree, name: str | None) -> None:
    """Set the algorithm, which is left to fill in for None, and its critic."""
    critic = [key for key in KEYS if key.startswith("critic.")]
    if name is None:
        what = f"{show_value(given[ESTIMATOR])} there, which is not known here"
        given.mark_missing(config, "algorithm.name", what)
        given.silence([ESTIMATOR, LOSS, *critic], "algorithm.name is to fill in")
        return
    set_key(config, "algorithm.name", name)
    if name == "ppo":
        set_key(config, "critics.agent", {"optimizer": {}})
    elif name == "ppo_critic":
        set_key(config, "critics.token", {"base": given["critic.model.path"], "optimizer": {}})
    else:
        given.silence(critic, f"{name} has no critic")
        return
    _set_critic(given, config, name)


def _set_critic(given: Given, config: Tree, name: str) -> None:
    """Set the schedule of a critic and its passes; the rest is as for the policies."""
    epochs = f"{ACTOR}.ppo_epochs"
    passes = given["critic.ppo_epochs"] or given[epochs]
    if name == "ppo_critic":
        set_key(config, "algorithm.critic_epochs", passes)
    elif passes != given[epochs]:
        given.refuse("critic.ppo_epochs", f"a value head is trained with its policy: {epochs}")
    else:
        given.placed["critic.ppo_epochs"] = "algorithm.epochs"
    for key in ("ppo_mini_batch_size", "loss_agg_mode"):
        value = given[f"critic.{key}"]
        if value not in (None, given[f"{ACTOR}.{key}"]):
            given.refuse(f"critic.{key}", f"critics are trained as policies are: {ACTOR}.{key}")
        else:
            given.silence([f"critic.{key}"], f"as {ACTOR}.{key}")
    style = given["critic.optim.warmup_style"]
    if style is not None:
        schedule = given.choose("critic.optim.warmup_style", SCHEDULES, "no such schedule")
        for critic in config["critics"].values():
            critic["optimizer"]["schedule"] = schedule or "constant"
            if style == "cosine" and given["critic.optim.min_lr_ratio"]:
                critic["optimizer"]["min_lr_ratio"] = given["critic.optim.min_lr_ratio"]
    if style != "cosine":
        given.silence(["critic.optim.min_lr_ratio"], "warmup_style is constant")


def set_reward_model(given: Given, config: Tree) -> None:
    """Let a reward model pay in place of the environment."""
    if not given["reward_model.enable"]:
        unread = [key for key in KEYS if key.startswith(("reward_model.m", "reward_model.s"))]
        given.silence(unread, "reward_model.enable is not set")
    elif given["reward_model.model.path"] is None:
        given.mark_missing(config, "rewards.reward_model.model", "the reward model")
    else:
        set_key(config, "rewards.reward_model.model", given["reward_model.model.path"])


def set_rows(given: Given, config: Tree) -> None:
    """Set the files of rows."""
    for key, split in (("data.train_files", "train"), ("data.val_files", "test")):
        if given[key] is None or is_unknown(given[key]):
            given.mark_missing(
                config, f"environment.{split}", f"rows, {show_value(given[key])} there"
            )
        else:
            set_key(config, f"environment.{split}", given[key])


def set_loss(given: Given, config: Tree) -> None:
    """Set the mean, the clip and the KL of the loss."""
    agg = given.choose(f"{ACTOR}.loss_agg_mode", AGGREGATIONS, "no such mean")
    set_key(config, "algorithm.agg", agg or "token")
    for side in ("low", "high"):
        clip = given[f"{ACTOR}.clip_ratio_{side}"]
        set_key(
            config, f"algorithm.clip_{side}", given[f"{ACTOR}.clip_ratio"] if clip is None else clip
        )
    _kl(given, config)


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
        if given["algorithm.kl_ctrl.type"] == "adaptive":
            set_key(config, "algorithm.kl_target", given["algorithm.kl_ctrl.target_kl"])
            set_key(config, "algorithm.horizon", given["algorithm.kl_ctrl.horizon"])
        else:
            adaptive = ["algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"]
            given.silence(adaptive, "kl_ctrl.type is fixed")
    else:
        unread = [key for key in KEYS if key.startswith("algorithm.kl_")]
        given.silence(unread, "use_kl_in_reward is not set")
    if not in_loss and not in_reward:
        set_key(config, "algorithm.kl", 0.0)
    else:
        for policy in config["policies"].values():
            policy["reference"] = "initial"


def set_amounts(given: Given, config: Tree, *, samples: str) -> None:
    """Set length, checkpoints and evaluations; `samples` is their key of attempts at a task."""
    steps = given["trainer.total_training_steps"] or given.steps
    if steps:
        set_key(config, "trainer.steps", steps)
        given.silence(["trainer.total_epochs"], "trainer.total_training_steps says it")
    else:
        set_key(config, "trainer.epochs", given["trainer.total_epochs"])
    limit = ("data.max_prompt_length", "data.filter_overlong_prompts")
    if given[limit[1]]:
        set_key(config, "rollout.max_prompt_tokens", given[limit[0]])
    if given["data.truncation"] != "error":
        set_truncation(config, max_tokens=given[limit[0]], side=given["data.truncation"])
        if not given[limit[1]]:
            given.placed[limit[0]] = "team.*.truncation.max_tokens"
    elif not given[limit[1]]:
        given.silence(limit, f"no task is left out; {PROMPTS}")
    save, every = given["trainer.save_freq"], given["trainer.test_freq"]
    if save is not None:
        set_key(config, "trainer.save_every", save if save > 0 else NEVER)
    if every is not None:
        set_key(config, "evaluation.every", max(0, every))
    set_key(config, "evaluation.tasks", NEVER)
    set_key(config, "evaluation.samples", given[samples])
    set_key(config, "evaluation.k", given[samples])
    _sampling(given, config)
    if not given[f"{ROLLOUT}.val_kwargs.do_sample"]:
        set_key(config, "evaluation.greedy", True)
        if given[samples] > 1:
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


def set_trackers(given: Given, config: Tree) -> None:
    """Set the run folder and the trackers."""
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
