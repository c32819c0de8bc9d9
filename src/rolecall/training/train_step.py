"""Trains on the groups of a step: annotate, credit, pack, optimizer steps, publish.

Which of it an algorithm needs, it declares; the order is the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.whitening import whiten_families
from rolecall.core.async_types import Work
from rolecall.core.credit import LeftOut
from rolecall.core.interfaces.learner import Annotation, Learner, Update
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Batch, Episode, Pair, Turn
from rolecall.learners.by_agent import combine_objectives
from rolecall.learners.packing import pack, split
from rolecall.learners.updates import merge_updates
from rolecall.rollout.episodes import Rollout, turn_staleness
from rolecall.training.algorithm_group import AlgorithmGroup
from rolecall.training.run import Run

T = TypeVar("T")


async def refresh_references(run: Run, step: int) -> None:
    """Refresh each reference every `policies.NAME.reference_update_every` steps, before a step."""
    for name, learner in run.learners.items():
        every = run.config.policies[name].reference_update_every
        if every is not None and step > 1 and (step - 1) % every == 0:
            await learner.refresh_reference()


async def credit(run: Run, episodes: list[Episode]) -> None:
    """Give credit, after what the algorithms need: reference log-probs, values of critics."""
    for group in run.algorithm_groups:
        seen = view(episodes, group, run)
        algorithm = group.algorithm
        for policy, learner in run.learners.items():
            turns = [
                turn
                for episode in seen
                for turn in episode.turns
                if turn.policy == policy and turn.trained and turn.tokens is not None
                if turn.chosen or algorithm.compares_candidates
            ]
            compared = any(a.needs_reference for a in run.get_algorithms(policy).values())
            what: set[Annotation] = {"ref_logprobs"} if compared else set()
            if algorithm.critic == "agent":
                what.add("values")
                if run.get_step_algorithm(policy).needs_prox:  # the same pass gives both
                    what.add("prox_logprobs")
            read = prepare_for_loss(turns, algorithm)
            await annotate(learner, turns, what, read=read, budget=_budget(run, policy))
        for critic in (group.discriminator, group.critic):
            if critic is not None:
                await critic.annotate(seen)
                group.seen = seen
        algorithm.credit(seen)
        if group.kl_controller is not None:
            group.kl_controller.observe(seen)
    families = {episode.task.id: episode.task.family for episode in episodes}
    for policy in run.learners:
        algorithm = run.get_step_algorithm(policy)
        turns = trained_turns(episodes, policy, algorithm)
        if algorithm.per_family and turns:
            whiten_families(turns, families)


def leave_out_stale(run: Run, rollout: Rollout) -> None:
    """Take the credit from turns that are older than `policies.NAME.max_staleness` allows."""
    most = {name: run.config.policies[name].max_staleness for name in run.learners}
    versions = run.versions
    for episode in rollout.episodes:
        for turn in episode.turns:
            limit = most.get(turn.policy)
            if turn.advantages is None or limit is None:
                continue
            if turn_staleness(turn, versions) > limit:
                turn.give_credit(LeftOut(f"it is older than {limit} versions"))
                rollout.num_stale_turns += 1


async def update(
    run: Run, episodes: list[Episode], *, step: int, apart: bool
) -> tuple[dict[str, Update], dict[str, float]]:
    """Pack and update every policy, then the critics; what each did.

    In the first `trainer.critic_warmup` steps no policy is updated. Policies whose
    learners compute in different places update at the same time, unless an algorithm takes one
    after the other. `apart` computes in a thread of its own, so that the engine can go on sampling.
    """
    updates: dict[str, Update] = {}

    async def one_by_one(policies: list[str]) -> None:
        for policy in policies:
            done = await _in_thread(_update_policy(run, policy, episodes, step), apart)
            if done is not None:
                updates[policy] = done
            for group in sequential:  # whoever waits must know what any policy changed
                group.algorithm.after_update(policy, view(episodes, group, run))

    order = sorted(run.learners) if step > run.config.trainer.critic_warmup else []
    sequential = [group for group in run.algorithm_groups if group.algorithm.one_policy_at_a_time]
    if sequential:
        np.random.default_rng(derive_seed(run.config.trainer.seed, "order", step)).shuffle(order)
        await one_by_one(order)
    else:
        places: dict[int, list[str]] = {}
        for policy in order:
            places.setdefault(id(run.learners[policy].place), []).append(policy)
        ended = await asyncio.gather(*map(one_by_one, places.values()), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error
        updates = {policy: updates[policy] for policy in order if policy in updates}
    metrics: dict[str, float] = {}
    for group in run.algorithm_groups:
        if group.critic is not None:
            fitted = group.algorithm.fit(group.seen, group.critic)
            metrics |= {f"critic/{name}": value for name, value in fitted.items()}
        if group.discriminator is not None:
            fitted = group.discriminator.fit()
            metrics |= {f"discriminator/{name}": value for name, value in fitted.items()}
        group.seen = []
        group.algorithm.after_step(step)
        counted = group.algorithm.metrics()
        if group.kl_controller is not None:
            group.kl_controller.move()
            counted |= group.kl_controller.metrics()
        metrics |= {f"algorithm/{name}": value for name, value in counted.items()}
    return updates, metrics


async def _update_policy(
    run: Run, policy: str, episodes: list[Episode], step: int
) -> Update | None:
    algorithm, learner = run.get_step_algorithm(policy), run.learners[policy]
    budget = _budget(run, policy)
    turns = trained_turns(episodes, policy, algorithm)
    if not turns:
        return None
    measured = _turns_that_move(run, policy, episodes)
    if measured or algorithm.needs_prox:
        read = {turn.id: turn for turn in (*turns, *measured)}
        if algorithm.needs_prox and algorithm.critic == "agent":  # `credit` has noted those
            read = {name: turn for name, turn in read.items() if turn.advantages is None}
        await annotate(learner, list(read.values()), {"prox_logprobs"}, budget=budget)
    algorithms = run.get_algorithms(policy)
    per_agent = run.config.metrics.grad_norms_in(step)
    seed = derive_seed(policy, step)
    steps = optimizer_steps(run, policy, turns, algorithm, seed=seed, by_agent=per_agent)
    await learner.load_back()
    done = await learner.update(steps, combine_objectives({**algorithms}), per_agent=per_agent)
    await learner.offload()
    if not done:
        return None
    await annotate(learner, measured, {"new_logprobs"}, budget=budget)
    merged_update = merge_updates(done)
    if merged_update.agent_grad_norms:  # agents without advantages are in no batch
        silent = {turn.agent: 0.0 for turn in turns}
        merged_update.agent_grad_norms = silent | merged_update.agent_grad_norms
    return merged_update


def _turns_that_move(run: Run, policy: str, episodes: list[Episode]) -> list[Turn]:
    """Return the played turns whose probabilities a sequential update of this policy changes.

    They are all that the policy said, also what its loss leaves out: turns that were cut by
    length, that are stale, or whose agent is frozen.
    """
    if not any(group.algorithm.one_policy_at_a_time for group in run.algorithm_groups):
        return []
    return [
        turn
        for episode in episodes
        for turn in episode.turns
        if turn.policy == policy and turn.chosen and turn.tokens is not None
    ]


def _budget(run: Run, policy: str) -> int:
    return run.config.get_learner(policy).tokens_per_batch


async def annotate(
    learner: Learner,
    turns: list[Turn],
    what: set[Annotation],
    *,
    budget: int,
    read: list[Turn] | None = None,
) -> None:
    """Write what the learner says on the turns; `read`: the same turns as the loss reads them."""
    noted = await learner.annotate(turns if read is None else read, what, budget=budget)
    for turn in turns:
        for name, values in noted[turn.id].items():
            setattr(turn.training, name, values)


def prepare_for_loss(turns: list[Turn], algorithm: Algorithm) -> list[Turn]:
    """Return the turns as the algorithm's loss reads them.

    A loss of likelihoods reads them at temperature 1, and asks nothing of their sampler.
    """
    if not algorithm.reads_likelihoods:
        return turns
    return [replace(turn, temperature=1.0, logprobs=None) for turn in turns]


def trained_turns(episodes: list[Episode], policy: str, algorithm: Algorithm) -> list[Turn]:
    return [
        turn
        for episode in episodes
        for turn in episode.turns
        if turn.policy == policy and turn.advantages is not None
        if not (algorithm.mask_truncated and turn.finish == "length")
    ]


def optimizer_steps(
    run: Run, policy: str, turns: list[Turn], algorithm: Algorithm, *, seed: int, by_agent: bool
) -> list[list[Batch]]:
    """Return the micro-batches of each optimizer step, of all passes; empty steps are left out."""
    config = run.config.get_learner(policy)
    random = np.random.default_rng(derive_seed(run.config.trainer.seed, seed))
    turns = prepare_for_loss(turns, algorithm)
    pairs = _pairs(run, turns) if algorithm.keep_together else None
    if pairs == []:
        return []
    shares = config.share_prefixes and run.learners[turns[0].policy].shares_prefixes
    steps = []
    for _ in range(algorithm.epochs):
        for share, together in split(turns, algorithm.minibatches, random=random, pairs=pairs):
            batches = pack(
                share,
                budget=config.tokens_per_batch,
                skip_zero=all(a.skips_zero for a in run.get_algorithms(policy).values()),
                share=shares,
                by_agent=by_agent,
                pairs=together,
            )
            if batches:
                steps.append(batches)
    return steps


def _pairs(run: Run, turns: list[Turn]) -> list[Pair]:
    """Return the pairs of these turns, each agent's found as its own settings say."""
    pairs: list[Pair] = []
    for group in run.algorithm_groups:
        mine = [turn for turn in turns if turn.agent in group.agents]
        pairs += group.algorithm.pairs(mine)
    return pairs


async def publish(run: Run, policies: list[str]) -> None:
    """Give the engine the new weights and wake it. Raises PublishError where it says otherwise."""
    await run.engine.wake("weights")
    for policy in policies:
        await run.publisher.publish(policy, run.learners[policy].version)
    await run.engine.wake("cache")
    for policy in policies:
        await run.publisher.check(policy)


def view(episodes: list[Episode], part: AlgorithmGroup, run: Run) -> list[Episode]:
    """Return the episodes as one of several algorithms sees them: others' agents are frozen.

    What its critic notes on their turns stays in this view.
    """
    if len(run.algorithm_groups) == 1:
        return episodes
    return [
        replace(
            episode,
            turns=[
                turn
                if turn.agent in part.agents
                else replace(
                    turn, trained=False, info=dict(turn.info), training=replace(turn.training)
                )
                for turn in episode.turns
            ],
        )
        for episode in episodes
    ]


@contextmanager
def threads_shared(apart: bool) -> Iterator[None]:
    """Give sampling and an update, which compute at the same time if `apart`, half of the cores
    each.

    With all of them each, both wait for threads that have no core to run on.
    """
    threads = torch.get_num_threads()
    if apart:
        torch.set_num_threads(max(1, threads // 2))
    try:
        yield
    finally:
        if apart:
            torch.set_num_threads(threads)


async def _in_thread(work: Work[T], apart: bool) -> T:
    return await (asyncio.to_thread(asyncio.run, work) if apart else work)
