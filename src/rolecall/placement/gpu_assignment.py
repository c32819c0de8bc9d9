"""Says which GPUs of a cluster's pools each policy's ranks and engines compute on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError

OWN = "own"  # the pool of a cluster for which the config names none


@dataclass(frozen=True, slots=True)
class Seats:
    """The GPUs that one policy has, by their numbers in the pool."""

    pool: str
    ranks: tuple[int, ...] = ()
    engines: tuple[tuple[int, ...], ...] = ()  # of each of them


@dataclass(slots=True)
class _Taken:
    """The seats of one pool that are given away."""

    next: int
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by who shares them
    engines: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


def gpu_name(pool: str, number: int) -> str:
    """Return the name of a GPU of a pool."""
    return f"cuda:{pool}/{number}"


def assign_gpus(config: Config) -> dict[str, Seats]:
    """Return the seats of each policy. Raises ConfigError where a pool has too few.

    Policies that are colocated have the first GPUs of a pool together: the ranks and the engines of
    each of them begin at GPU 0. After them come the ranks and then the engines of each other
    policy. Adapters of one base have the same ranks, and the same engines.
    """
    seats: dict[str, Seats] = {}
    for pool, names in _pools(config).items():
        together = [name for name in names if config.policies[name].colocate]
        allocated = _Taken(next=max((max(_numbers(config, name)) for name in together), default=0))
        for name in names:
            if name in together:
                ranks, _ = _numbers(config, name)
                seats[name] = Seats(pool, tuple(range(ranks)), _engines(config, name, 0))
            else:
                seats[name] = _apart(config, name, pool, allocated)
        _check(config, pool, names, allocated.next)
    return seats


def num_gpus(config: Config) -> dict[str, int]:
    """Return how many GPUs each pool has; those of a cluster without pools are what is needed."""
    if config.cluster.pools:
        return {name: pool.gpus for name, pool in config.cluster.pools.items()}
    used = [number for seats in assign_gpus(config).values() for number in _all(seats)]
    return {OWN: max(used) + 1} if used else {}


def _all(seats: Seats) -> Iterator[int]:
    yield from seats.ranks
    for engine in seats.engines:
        yield from engine


def _pools(config: Config) -> dict[str, list[str]]:
    """Return the policies of each pool that have processes of a cluster."""
    by_pool: dict[str, list[str]] = {}
    if not config.cluster.is_remote:
        return by_pool
    for name in config.policies:
        if any(_numbers(config, name)):
            by_pool.setdefault(config.get_pool(name) or OWN, []).append(name)
    return by_pool


def _numbers(config: Config, name: str) -> tuple[int, int]:
    """Return how many GPUs its ranks and its engines have."""
    ranks = config.get_learner(name).num_ranks if name in config.trained_policies else 0
    return ranks, sum(map(len, _engines(config, name, 0)))


def _engines(config: Config, name: str, first: int) -> tuple[tuple[int, ...], ...]:
    if not config.is_replicated(name):
        return ()
    engine = config.get_engine(name)
    each = engine.gpus_per_engine
    starts = range(first, first + engine.num_engines * each, each)
    return tuple(tuple(range(start, start + each)) for start in starts)


def _apart(config: Config, name: str, pool: str, taken: _Taken) -> Seats:
    """Return GPUs of its own, or those of the first policy that it shares a base with."""
    policy = config.policies[name]
    key = f"base {policy.base}" if policy.adapter is not None else f"policy {name}"
    ranks, _ = _numbers(config, name)
    if key not in taken.ranks or len(taken.ranks[key]) != ranks:
        taken.ranks[key] = tuple(range(taken.next, taken.next + ranks))
        taken.next += ranks
    of_engine = key
    if config.get_engine(name).is_embedded:
        of_engine = repr(config.get_engine(name))  # one embedded engine samples several models
    if of_engine not in taken.engines:
        taken.engines[of_engine] = _engines(config, name, taken.next)
        taken.next += sum(map(len, taken.engines[of_engine]))
    return Seats(pool, taken.ranks[key], taken.engines[of_engine])


def _check(config: Config, pool: str, names: list[str], needed: int) -> None:
    """Check that the pool has as many GPUs as its policies need; raises ConfigError otherwise."""
    if pool in config.cluster.pools and needed > (there := config.cluster.pools[pool].gpus):
        raise ConfigError(
            f"cluster.pools.{pool}.gpus: {', '.join(names)} need {needed} GPUs and the pool has "
            f"{there}; write {needed}, fewer engine.replicas or learner.ranks, or "
            "policies.NAME.colocate=true for policies that may take turns"
        )
