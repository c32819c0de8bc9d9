"""Says what the algorithms of a config need and do not have, and how to get it."""

from __future__ import annotations

import inspect
from typing import Any

from rolecall.algorithms.base import Algorithm
from rolecall.config.schema import Config
from rolecall.core.interfaces.environment import Environment, World
from rolecall.core.types import Task
from rolecall.setup.validate_options import Problems
from rolecall.workflows.base import Workflow

# Options of the loss in which agents that share a policy may differ: how far each may move, from
# where, and how it is held there. All others are of the policy's step.
OF_AN_AGENT = frozenset({"clip_low", "clip_high", "dual_clip", "kl", "kl_form", "entropy"})


def check_needs(config: Config, flow: Workflow, algorithms: dict[str, Algorithm]) -> Problems:
    """Check what can be said before tasks are read; `algorithms` by trainable agent."""
    for agent, algorithm in algorithms.items():
        named = config.team[agent].algorithm or config.algorithm
        yield from _check_groups(config, flow, algorithm, named.name)
        yield from _check_reference(config, config.team[agent].policy, algorithm, named.name)
        for critic, reads in algorithm.critics.items():
            if critic not in config.critics:
                yield (
                    f"critics.{critic}: {named.name} needs this critic; "
                    f"set critics.{critic}{'.base=MODEL' if reads else '={}'}"
                )
    yield from _check_data(config, algorithms)
    yield from _check_refreshed(config)
    yield from _check_unused(config, list(algorithms.values()))
    yield from _check_critic_warmup(config, algorithms)
    yield from _check_sharing(config, algorithms)
    yield from _check_candidates(config, flow, list(algorithms.values()))
    yield from _check_choosing(config, flow, algorithms)
    yield from _check_staleness(config)


def check_fork(
    config: Config, flow: Workflow, environment: Environment, task: Task, number: int
) -> Problems:
    """Check that the world of a workflow which tries out candidates can be copied."""
    if number == 1 or not flow.forks:
        return
    world = environment.open(task, seed=0)
    if type(world).fork is World.fork:
        yield (
            f"environment: workflow {config.workflow.name!r} tries candidates out in forks of the "
            f"world, but {type(world).__name__} cannot fork; give it an async `fork` method that "
            "returns a world in the same state"
        )


def num_candidates(config: Config, flow: Workflow) -> int | None:
    """Return the workflow's option `candidates`; None if it draws some, but its source says how
    many.
    """
    if not flow.candidates:
        return 1
    option = inspect.signature(flow.play).parameters.get("candidates")
    if option is None:
        return None
    return int(config.workflow.options.get("candidates", option.default))


def _check_groups(config: Config, flow: Workflow, algorithm: Algorithm, name: str) -> Problems:
    size = config.rollout.group_size
    if algorithm.demonstrations == "":
        yield f"algorithm.experts: {name} imitates demonstrations; set it to a file of them"
    if config.rollout.data is not None:
        if config.rollout.group_filter is not None:
            yield "rollout.group_filter has no effect: rollout.data has no groups; remove it"
        if algorithm.takes_data is None:
            yield (
                f"rollout.data: {name} needs turns that its own policies sampled; use sft for "
                "demonstrations, or dpo for preferences"
            )
        return
    if algorithm.answers_data:
        yield f"rollout.data: {name} compares its own answers with demonstrations; set it to a file"
        return
    least = algorithm.least_attempts(flow.is_group)
    if size < least:
        counted = "; with algorithm.count=turn one is enough for this workflow"
        helps = flow.is_group and getattr(algorithm, "count", "turn") != "turn"
        yield (
            f"rollout.group_size: {name} compares attempts at one task and needs "
            f"at least {least} (it is {size}){counted if helps else ''}"
        )
    alone = num_candidates(config, flow) == 1
    if algorithm.needs_candidates and alone:
        yield (
            f"workflow: {name} compares candidates of one call, and workflow "
            f"{config.workflow.name!r} draws one; "
            + (
                "set workflow.candidates to 2 or more"
                if flow.candidates
                else "write `await team.AGENT.candidates(4)(...)` and `team.choose(turn)` in it, "
                "and declare it with @workflow(candidates=True)"
            )
        )
    if algorithm.keep_together and alone and size < 2:
        yield (
            f"rollout.group_size: {name} pairs answers to one prompt and needs at least 2 "
            f"attempts or candidates (it is {size})"
        )


def _check_data(config: Config, algorithms: dict[str, Algorithm]) -> Problems:
    kinds = {algorithm.takes_data for algorithm in algorithms.values()}
    if config.rollout.data is not None and len(kinds) > 1:
        yield (
            "rollout.data: one file cannot hold both demonstrations and preferences; give all "
            "agents one algorithm"
        )


def _check_reference(config: Config, policy: str, algorithm: Algorithm, name: str) -> Problems:
    section = config.policies.get(policy)  # an unknown policy is another check's problem
    if algorithm.needs_reference and section is not None and section.reference is None:
        off = "" if algorithm.keep_together else ", or algorithm.kl=0 to do without"
        yield (
            f"policies.{policy}.reference: {name} compares with a reference and there is none; "
            f"set policies.{policy}.reference=initial{off}"
        )


def _check_refreshed(config: Config) -> Problems:
    for name, policy in config.policies.items():
        if policy.reference_update_every is None:
            continue
        key = f"policies.{name}.reference_update_every"
        if policy.reference != "initial":
            yield f"{key}: only the reference `initial` takes over weights; set it, or remove this"
        elif name in config.trained_policies and config.get_learner(name).is_sharded:
            yield f"{key}: a learner with the name fsdp cannot; use local or replicated"


def _check_unused(config: Config, algorithms: list[Algorithm]) -> Problems:
    for name, critic in config.critics.items():
        users = [algorithm for algorithm in algorithms if name in algorithm.critics]
        if not users:
            yield f"critics.{name} has no effect: no algorithm here reads it; remove it"
            continue
        reads = users[0].critics[name]
        if reads and critic.base is None:
            yield (
                f"critics.{name}.base is missing: a model reads the conversation; "
                f"set critics.{name}.base=MODEL"
            )
        if name != "agent" and critic.heads > 1:
            yield f"critics.{name}.heads has no effect: only the critic `agent` has them; remove it"
        if not reads and critic.base is not None:
            yield f"critics.{name}.base has no effect: this critic has no own model; remove it"
    if not any(algorithm.needs_reference for algorithm in algorithms):
        for policy_name, policy in config.policies.items():
            if policy.reference is not None:
                yield (
                    f"policies.{policy_name}.reference has no effect: no algorithm here reads it; "
                    "remove it"
                )


def _check_critic_warmup(config: Config, algorithms: dict[str, Algorithm]) -> Problems:
    """Check that critics with weights of their own learn while the policies stay."""
    steps = config.trainer.critic_warmup
    if not steps:
        return
    for agent, algorithm in algorithms.items():
        name = (config.team[agent].algorithm or config.algorithm).name
        if algorithm.critic in (None, "agent"):
            has = "no critic" if algorithm.critic is None else "a head on the policy's own model"
            yield (
                f"trainer.critic_warmup: {name} of {agent} has {has}, which cannot learn alone; "
                "write 0, or name an algorithm such as ppo_critic or mappo"
            )
    if steps >= config.trainer.steps:
        yield (
            f"trainer.critic_warmup: {steps} steps leave none of the {config.trainer.steps} in "
            "which policies learn; write less"
        )


def _check_sharing(config: Config, algorithms: dict[str, Algorithm]) -> Problems:
    by_policy: dict[str, tuple[str, Algorithm]] = {}
    for agent, algorithm in algorithms.items():
        policy = config.team[agent].policy
        other, first = by_policy.setdefault(policy, (agent, algorithm))
        if _loss_identity(first) != _loss_identity(algorithm):
            yield (
                f"team.{agent}.algorithm: {other!r} and {agent!r} share policy {policy!r}, but "
                "their algorithms have different losses; give them policies of their own"
            )
        for name, (one, two) in _settings_apart(first, algorithm).items():
            yield (
                f"team.{agent}.algorithm.{name}: {other!r} and {agent!r} share policy {policy!r}, "
                f"but {name} is {one!r} of {other!r} and {two!r} of {agent!r}; a policy has one "
                "loss, so give both the same value, or policies of their own"
            )
    sequential = [a for a, algorithm in algorithms.items() if algorithm.one_policy_at_a_time]
    if sequential and len(by_policy) == 1:
        [policy] = by_policy
        yield (
            f"policies: {', '.join(sequential)} are updated one policy after another, but all "
            f"share policy {policy!r}; give each a policy of its own, or use mappo"
        )


def _loss_identity(algorithm: Algorithm) -> tuple[Any, ...]:
    """Return what makes two losses the same, beside their settings: the code."""
    kind = type(algorithm)
    code = [getattr(kind, name, None) for name in ("loss", "objective", "more_terms")]
    return (*code, kind.critic, kind.keep_together)


def _settings_apart(one: Algorithm, other: Algorithm) -> dict[str, tuple[Any, Any]]:
    """Return the options that both losses have, each with other values."""
    names = (type(one).loss_fields() & type(other).loss_fields()) - OF_AN_AGENT
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in sorted(names)}
    return {name: values for name, values in pairs.items() if values[0] != values[1]}


def _check_candidates(config: Config, flow: Workflow, algorithms: list[Algorithm]) -> Problems:
    number = num_candidates(config, flow)
    if number is not None and number < 1:
        yield f"workflow.candidates: write at least 1 (it is {number})"
    if flow.plays_candidates:
        return
    if number != 1 and not any(algorithm.compares_candidates for algorithm in algorithms):
        yield (
            "workflow.candidates: those that are not played would train nobody; use at_grpo, or "
            "set workflow.candidates=1"
        )


def _check_choosing(config: Config, flow: Workflow, algorithms: dict[str, Algorithm]) -> Problems:
    """Check that nothing else chooses or judges answers where the algorithm does."""
    for agent, algorithm in algorithms.items():
        chooses = type(algorithm).chooser is not Algorithm.chooser
        if not chooses and type(algorithm).judge is Algorithm.judge:
            continue
        name = (config.team[agent].algorithm or config.algorithm).name
        if config.team[agent].tools is not None:
            does = "chooses among" if chooses else "judges"
            yield f"team.{agent}.tools: {name} {does} whole answers; remove them"
        if chooses and num_candidates(config, flow) != 1:
            yield (
                f"workflow: {name} chooses among candidates itself, and {config.workflow.name!r} "
                "draws some of its own; write workflow.candidates=1, or name another workflow"
            )
        if chooses and algorithm.moves_policies and config.trainer.max_staleness:
            yield (
                f"trainer.max_staleness: {name} reads its agents' models in every call, and an "
                "update moves them meanwhile; write 0, or algorithm.distil=false"
            )
        if config.cluster.workers:
            yield f"cluster.workers: {name} asks its critic in every call; write 0"


def _check_deadline(config: Config) -> Problems:
    rollout, trainer = config.rollout, config.trainer
    if rollout.data is not None:
        for key in ("deadline_s", "carry"):
            if getattr(rollout, key):
                yield f"rollout.{key} has no effect with rollout.data; remove it"
        return
    if rollout.deadline_s is not None and trainer.deterministic:
        yield (
            "trainer.deterministic: with rollout.deadline_s the clock decides which episodes are "
            "trained; leave one of them out"
        )
    if rollout.carry and rollout.deadline_s is None:
        yield "rollout.carry: without rollout.deadline_s a step waits for all; set it, or write 0"
    if rollout.carry and not trainer.max_staleness:
        yield (
            "rollout.carry: what is carried over is sampled during updates; set "
            "trainer.max_staleness=1, or write 0"
        )


def _check_staleness_by_policy(config: Config) -> Problems:
    allowed = config.trainer.max_staleness + config.rollout.carry
    for name, policy in config.policies.items():
        if policy.max_staleness is None:
            continue
        key = f"policies.{name}.max_staleness"
        if name not in config.trained_policies:
            yield f"{key}: {name} is not trained; remove it"
        elif policy.max_staleness >= allowed:
            yield (
                f"{key}: no turn is trained that is staler than {allowed} (trainer.max_staleness, "
                "rollout.carry); write less, or remove it"
            )


def _check_staleness(config: Config) -> Problems:
    yield from _check_deadline(config)
    yield from _check_staleness_by_policy(config)
    if config.trainer.max_staleness == 0:
        return
    if not all(config.weights_are_apart(policy) for policy in config.trained_policies):
        yield (
            "trainer.max_staleness: rollouts of later steps need weights that the update does not "
            "move; set engine.separate_weights=true"
        )
    if config.trainer.deterministic:
        yield (
            "trainer.deterministic: with max_staleness above 0 latency decides which weights "
            "sample; leave it out, or set trainer.max_staleness=0"
        )
    if config.rollout.data is not None:
        yield "trainer.max_staleness has no effect with rollout.data"
