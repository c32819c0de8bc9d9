"""Makes a config of ours from a script or YAML of plain verl: a team of one agent."""

from __future__ import annotations

from rolecall.importers import drmas_keys
from rolecall.importers.keys import Framework, Given, Key, Tree, becomes, ignore, read, set_key
from rolecall.importers.verl_names import ACTOR, MODEL, ROLLOUT
from rolecall.importers.verl_parts import (
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

DATA = "rewards come from the environment math; name another one for other rows"
# What Dr. MAS adds to verl, and what its scripts take the place of.
OF_TEAMS = ("agent.", "env.", "algorithm.gigpo.", "algorithm.group_by_agent_id", "algorithm.filter",
            f"{ACTOR}.use_invalid", f"{ACTOR}.invalid_action")  # fmt: skip
KEYS: dict[str, Key] = {
    **{name: key for name, key in drmas_keys.KEYS.items() if not name.startswith(OF_TEAMS)},
    "data.reward_fn_key": ignore(DATA),
    "custom_reward_function.path": read("rewards"),
    "custom_reward_function.name": ignore("the function that the file names"),
    "reward_model.reward_manager": ignore(DATA),
    f"{ACTOR}.ppo_mini_batch_size": read("algorithm.minibatches", 256),
    f"{ACTOR}.entropy_coeff": becomes("algorithm.entropy", 0.0),
    f"{ROLLOUT}.n": becomes("rollout.group_size", 1),
    f"{ROLLOUT}.val_kwargs.n": read("evaluation.samples", 1),
    "data.seed": becomes("trainer.seed"),
}
DIFFERS = ("Rewards are those of the environment math: 1 for a right answer.",)


def build(given: Given) -> Tree:
    """Return a team of one agent that answers each question once."""
    config: Tree = {"team": {"solver": {"policy": "solver"}}, "policies": {}}
    config["policies"]["solver"] = build_policy(
        given, given[f"{MODEL}.path"], given[f"{ACTOR}.optim.lr"]
    )
    if given[f"{MODEL}.path"] is None:
        given.mark_missing(config, "policies.solver.base", "the model")
    set_key(config, "workflow.name", "single")
    set_key(config, "environment.name", "math")
    set_rows(given, config)
    if given["custom_reward_function.path"] is not None:
        what = f"path/to/file.py:name of {given['custom_reward_function.path']}, as rewards here"
        given.mark_missing(config, "rewards", what)
    _algorithm(given, config)
    set_reward_model(given, config)
    set_amounts(given, config, samples=f"{ROLLOUT}.val_kwargs.n")
    set_trackers(given, config)
    return config


def _algorithm(given: Given, config: Tree) -> None:
    name = choose_algorithm(given, ESTIMATORS)
    set_algorithm(given, config, name)
    if name in ("grpo", "gspo") and not given["algorithm.norm_adv_by_std_in_grpo"]:
        set_key(config, "algorithm.std", "none")
    share = given["data.train_batch_size"] / given[f"{ACTOR}.ppo_mini_batch_size"]
    set_key(config, "algorithm.minibatches", max(1, round(share)))
    set_loss(given, config)


FRAMEWORK = Framework(
    name="verl",
    title="verl",
    marks=("actor_rollout_ref", "verl.trainer"),
    own_marks=("actor_rollout_ref", "verl.trainer"),
    keys=KEYS,
    build=build,
    differs=DIFFERS,
)
