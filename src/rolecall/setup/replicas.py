"""Starts the engines of policies in processes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch

from rolecall.cluster.pool import Pool, Seat
from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import LocalClusterConfig
from rolecall.config.schema import Config
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.core.json_types import JsonObject
from rolecall.engines.backend import EngineBackend, engine_backend
from rolecall.engines.inputs import EngineInputs
from rolecall.placement.devices import direct_transfer, takes_turns
from rolecall.placement.gpu_assignment import assign_gpus
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.weights import load_models, load_tokenizers


def make_replicas(
    session: RaySession,
    backend: EngineBackend,
    *,
    pools: Mapping[str, Pool] = MappingProxyType({}),
    threads: int = 1,
) -> ReplicatedEngine:
    """Make the engines of policies of one kind.

    `pools`: the GPUs of the cluster, if it has any; `threads`: of each, on a CPU.
    """
    config, names = backend.config, backend.policies
    seats: list[Seat | None] = [None] * backend.section.num_engines
    if pools:
        mine = assign_gpus(config)[names[0]]
        seats = [Seat(pools[mine.pool], gpus) for gpus in mine.engines]
    device = session.actor_device(config.get_device(names[0]))
    return ReplicatedEngine(
        session,
        partial(
            hosted_engine,
            _config_of_actor(config, names, device=device),
            names,
            threads=threads,
            sleeps=takes_turns(config, names[0], auto=device),
        ),
        names,
        seats=seats,
        direct=direct_transfer(config, names[0], auto=device),
        can=backend.hosted_abilities,
    )


def _config_of_actor(config: Config, names: list[str], *, device: str) -> Config:
    """Return the config of an actor's process: these policies, on its own device."""
    section = config.get_engine(names[0])
    engine: JsonObject = {"replicas": 1}
    if section.first_device is not None:
        engine["device"] = None
    policies = {
        name: config.policies[name].model_copy(
            update={"device": device, "engine": section.model_copy(update=engine)}
        )
        for name in names
    }
    return config.model_copy(
        update={
            "policies": policies,
            "team": {name: a for name, a in config.team.items() if a.policy in names},
            "critics": {},
            "cluster": LocalClusterConfig(),
        }
    )


async def hosted_engine(
    config: Config, names: list[str], *, threads: int, sleeps: bool
) -> FileEngine:
    """Return the engine of policies in a process of its own, which has no other one.

    `sleeps`: whether it gives its GPUs back during updates.

    Raises ConfigError where it cannot sample them, and what an engine raises that cannot start.
    """
    torch.set_num_threads(threads)
    backend, tokenizers = engine_backend(config, names), load_tokenizers(config)
    models = {}
    if backend.section.is_embedded:
        models = load_models(config, names, tokenizers, sampling=True)
    return await backend.make_hosted(
        EngineInputs(models, IdleBarrier(), tokenizers=tokenizers, threads=threads, sleeps=sleeps)
    )
