"""Starts the engines of policies in processes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from rolecall.cluster.pool import Pool, Seat
from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import LocalClusterConfig
from rolecall.config.engines import LocalEngineConfig
from rolecall.config.schema import Config
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.engines.local.hosted import HostedEngine
from rolecall.placement.devices import direct_of, takes_turns
from rolecall.placement.gpu_assignment import seats_of
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.vllm import vllm_engine
from rolecall.setup.weights import load_models, load_tokenizers

OF_VLLM = frozenset({"adapters", "pause"})


def replicated(
    session: RaySession,
    config: Config,
    names: list[str],
    *,
    pools: Mapping[str, Pool] = MappingProxyType({}),
    threads: int = 1,
) -> ReplicatedEngine:
    """Make the engines of policies of one kind; `pools`: the GPUs of the cluster, if it has any;
    `threads`: of each, on a CPU.
    """
    section = config.engine_of(names[0])
    assert isinstance(section, LocalEngineConfig | VllmEngineConfig)
    seats: list[Seat | None] = [None] * section.replicas
    if pools:
        mine = seats_of(config)[names[0]]
        seats = [Seat(pools[mine.pool], gpus) for gpus in mine.engines]
    device = session.device_of(config.device_of(names[0]))
    return ReplicatedEngine(
        session,
        partial(
            hosted_engine,
            _alone(config, names, device=device),
            names,
            threads=threads,
            sleeps=takes_turns(config, names[0], auto=device),
        ),
        names,
        seats=seats,
        direct=direct_of(config, names[0], auto=device),
        can=OF_VLLM if isinstance(section, VllmEngineConfig) else HostedEngine.can,
    )


def _alone(config: Config, names: list[str], *, device: str) -> Config:
    """Return the config of an actor's process: these policies, on its own device."""
    engine: dict[str, Any] = {"replicas": 1}
    if isinstance(config.engine_of(names[0]), VllmEngineConfig):
        engine["device"] = None
    policies = {
        name: config.policies[name].model_copy(
            update={
                "device": device,
                "engine": config.engine_of(name).model_copy(update=engine),
            }
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

    `sleeps`: whether vLLM gives its GPUs back during updates.

    Raises ConfigError where it cannot sample them, and what vLLM raises that cannot start.
    """
    torch.set_num_threads(threads)
    tokenizers, section = load_tokenizers(config), config.engine_of(names[0])
    if isinstance(section, VllmEngineConfig):
        engine = vllm_engine(config, names, section, tokenizers, threads=threads, sleeps=sleeps)
        await engine.start()
        return engine
    assert isinstance(section, LocalEngineConfig)
    return HostedEngine(
        load_models(config, names, tokenizers, sampling=True),
        barrier=IdleBarrier(),
        deterministic=False,
        max_sequences=section.max_sequences,
        cache_gb=section.cache_gb,
    )
