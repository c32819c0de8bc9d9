"""Builds what a run has on a cluster: pools of GPUs, replicas of engines, workers for episodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch

from rolecall.cluster.pool import NoRoomError, Pool, Seat
from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.session import RaySession
from rolecall.cluster.worker import SharedEngine
from rolecall.cluster.workers import Workers
from rolecall.config.cluster import LocalClusterConfig
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Engine
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.core.json_types import JsonObject
from rolecall.engines.backend import EngineBackend, engine_backend, engine_backends
from rolecall.engines.inputs import EngineInputs
from rolecall.engines.served.backend import ServedBackend
from rolecall.memory.check import check_room
from rolecall.models.devices import full_name, is_gpu
from rolecall.placement.devices import direct_transfer, has_seats, takes_turns
from rolecall.placement.gpu_assignment import assign_gpus, gpu_name, num_gpus
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.context import make_context
from rolecall.setup.open_environment import check_environment, open_surroundings
from rolecall.setup.plan import validate
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


def make_pools(session: RaySession, config: Config) -> dict[str, Pool]:
    """Make the pools by name; none where actors share processors. Raises ConfigError where there
    are too few GPUs, or where one would hold more than it has.
    """
    auto = session.actor_device("auto")
    if not has_seats(config, auto=auto):
        return {}
    _check_trainer(config, auto=auto)
    sizes = num_gpus(config)
    if (number := sum(sizes.values())) > (there := session.gpus()):
        parts = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(
            f"cluster: its engines and ranks need {number} GPUs ({parts}), and Ray has {there}; "
            "write fewer engine.replicas or learner.ranks, or policies.NAME.colocate=true"
        )
    pools = {name: Pool(session, name, size) for name, size in sizes.items()}
    try:
        rooms = {name: pool.memory() for name, pool in pools.items()}
    except NoRoomError as error:
        raise ConfigError(f"cluster: {error}") from error
    memory = {
        gpu_name(name, number): room
        for name, room in rooms.items()
        if room is not None
        for number in range(sizes[name])
    }
    if memory:
        check_room(config, machine=memory)
    return pools


def _check_trainer(config: Config, *, auto: str) -> None:
    """Check that the trainer trains on no GPU that Ray gives away; raises ConfigError otherwise."""
    for name in sorted(config.trained_policies):
        device = full_name(config.get_device(name), auto=auto)
        if not config.get_learner(name).is_ranked and is_gpu(device):
            raise ConfigError(
                f"policies.{name}.learner: the trainer's process would train it on {device}, which "
                "Ray gives to actors; write learner.name=fsdp and learner.ranks=1, or "
                "learner.device=cpu"
            )
