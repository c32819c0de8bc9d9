"""Starts the engines of policies in processes of a cluster."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import LocalClusterConfig
from rolecall.config.engines import LocalEngineConfig
from rolecall.config.errors import ConfigError
from rolecall.config.schema import Config
from rolecall.config.vllm import VllmEngineConfig
from rolecall.engines.hosted import HostedEngine
from rolecall.interfaces.publisher import FileEngine
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.vllm import vllm_engine
from rolecall.setup.weights import load_models, load_tokenizers

OF_VLLM = frozenset({"adapters", "pause"})


def replicated(
    session: RaySession, config: Config, names: list[str], *, threads: int = 1
) -> ReplicatedEngine:
    """The engines of policies of one kind; `threads`: of each, on a CPU.

    Raises ConfigError where there are too few GPUs.
    """
    section = config.engine_of(names[0])
    assert isinstance(section, LocalEngineConfig | VllmEngineConfig)
    device = session.device_of(config.device_of(names[0]))
    on_gpu = device == "cuda"
    gpus = section.tensor_parallel if isinstance(section, VllmEngineConfig) else 1
    if on_gpu and gpus * section.replicas > session.gpus():
        raise ConfigError(
            f"engine.replicas: {section.replicas} engines of {gpus} GPUs need "
            f"{gpus * section.replicas}, and the cluster has {session.gpus()}"
        )
    return ReplicatedEngine(
        session,
        partial(
            hosted_engine,
            _alone(config, names, device=device),
            names,
            threads=threads,
        ),
        names,
        number=section.replicas,
        can=OF_VLLM if isinstance(section, VllmEngineConfig) else HostedEngine.can,
        gpus=gpus if on_gpu else 0,
        rounded=any(config.is_rounded(name) for name in names),
    )


def _alone(config: Config, names: list[str], *, device: str) -> Config:
    """The config of an actor's process: these policies, on its own device."""
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


async def hosted_engine(config: Config, names: list[str], *, threads: int) -> FileEngine:
    """The engine of policies in a process of its own, which has no other one.

    Raises ConfigError where it cannot sample them, and what vLLM raises that cannot start.
    """
    torch.set_num_threads(threads)
    tokenizers, section = load_tokenizers(config), config.engine_of(names[0])
    if isinstance(section, VllmEngineConfig):
        made = vllm_engine(config, names, section, tokenizers, threads=threads)
        await made.start()
        return made
    assert isinstance(section, LocalEngineConfig)
    return HostedEngine(
        load_models(config, names, tokenizers, sampling=True),
        barrier=IdleBarrier(),
        deterministic=False,
        max_sequences=section.max_sequences,
        cache_gb=section.cache_gb,
    )
