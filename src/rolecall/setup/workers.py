"""Starts the processes of a cluster that play episodes."""

from __future__ import annotations

from functools import partial

import torch

from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.session import RaySession
from rolecall.cluster.worker import SharedEngine
from rolecall.cluster.workers import Workers
from rolecall.config.schema import Config
from rolecall.core.interfaces.engine import Engine
from rolecall.engines.backend import engine_backends
from rolecall.engines.inputs import EngineInputs
from rolecall.engines.served.backend import ServedBackend
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.context import make_context
from rolecall.setup.open_environment import check_environment, open_surroundings
from rolecall.setup.plan import validate
from rolecall.setup.weights import load_tokenizers


def make_workers(session: RaySession, config: Config, engines: dict[str, Engine]) -> Workers:
    """Make `cluster.workers` workers; `engines` by policy."""
    replicated = {id(e): e for e in engines.values() if isinstance(e, ReplicatedEngine)}
    distinct, of = list(replicated.values()), session.section.workers
    return Workers(
        session,
        [
            partial(hosted_context, config, [engine.names for engine in distinct], number, of=of)
            for number in range(of)
        ],
        engines=distinct,
    )


async def hosted_context(
    config: Config, shared: list[list[str]], number: int, *, of: int
) -> tuple[RolloutContext, list[SharedEngine]]:
    """Return the context in which worker `number` of so many plays episodes, and its engine for
    each of `shared`: policies that the trainer's actors sample.

    Raises ConfigError where its machine lacks what episodes need.
    """
    torch.set_num_threads(1)
    plan = validate(config)
    opened, tokenizers = open_surroundings(plan), load_tokenizers(config)
    engines: dict[str, Engine] = {}
    shared_engines = [SharedEngine(number) for _ in shared]
    for names, sampler in zip(shared, shared_engines, strict=True):
        engines |= dict.fromkeys(names, sampler)
    barrier = IdleBarrier()
    for backend in engine_backends(config):
        if isinstance(backend, ServedBackend):
            backend.share_concurrency(of)
            engine = backend.make(EngineInputs({}, barrier, tokenizers=tokenizers))
            engines |= dict.fromkeys(backend.policies, engine)
    context = make_context(plan, opened, tokenizers, engines, barrier)
    await check_environment(opened.environment)
    return context, shared_engines
