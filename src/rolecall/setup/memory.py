"""Estimates how much memory the parts of a run take, before any of them is made.

Full training takes 16 bytes a parameter in float32 (weight, gradient, two moments) and 18 in
bfloat16 (weight 2, gradient 4, master 4, moments 8). Activations come on top: they grow with
learner.tokens_per_batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.schema import Config, PolicyConfig
from rolecall.models.sizes import Size, size_of

TRAINED = {"float32": 16, "bfloat16": 18}  # bytes a parameter
FROZEN = {"float32": 4, "bfloat16": 2}
ADAPTER = 16  # adapters are float32


@dataclass(frozen=True, slots=True)
class Memory:
    """What one part takes."""

    part: str
    parameters: int | None  # None: the base's config is not on this machine
    num_bytes: int | None


def memory_of(config: Config) -> list[Memory]:
    """Each policy, reference, critic, opponent pool, the engine's copies and its caches."""
    sizes = {base: _size(base) for base in _bases(config)}
    found: list[Memory] = []
    shared: set[str] = set()  # bases whose frozen weights adapters share
    for name, policy in config.policies.items():
        found += _of_policy(name, policy, config, sizes, shared)
    for name, critic in config.critics.items():
        if critic.base is not None:
            each = TRAINED if name == "team" else FROZEN
            found.append(_part(f"critic {name}", sizes[critic.base], each[config.learner.dtype]))
    caches = {
        policy.base if policy.adapter else name: section.cache_gb
        for name, policy in config.policies.items()
        if isinstance(section := config.engine_of(name), LocalEngineConfig)
    }
    cache = int(sum(caches.values()) * 1e9)
    return [*found, Memory("keys and values while sampling, at most", 0, cache)]


def _bases(config: Config) -> set[str]:
    bases = {policy.base for policy in config.policies.values()}
    references = {policy.reference for policy in config.policies.values()}
    critics = {critic.base for critic in config.critics.values()}
    return {base for base in bases | references | critics if base not in (None, "initial")}


def _of_policy(
    name: str,
    policy: PolicyConfig,
    config: Config,
    sizes: dict[str, Size | None],
    shared: set[str],
) -> list[Memory]:
    dtype, trained = config.learner_of(name).dtype, name in config.trained
    size, frozen = sizes[policy.base], FROZEN[dtype]
    found: list[Memory] = []
    if policy.adapter is not None:
        if policy.base not in shared:
            found.append(_part(f"base {policy.base}", size, frozen))
        adapter = None if size is None else size.adapter_parameters(policy.adapter)
        found.append(_counted(f"adapter {name}", adapter, ADAPTER if trained else 4))
    else:
        found.append(_part(f"policy {name}", size, TRAINED[dtype] if trained else frozen))
    if trained and config.weights_are_apart(name) and policy.base not in shared:
        sampled = FROZEN[config.sampling_dtype(name)]
        found.append(_part(f"the engine's copy of {name}", size, sampled))
    if policy.adapter is not None:
        shared.add(policy.base)
    if policy.reference is not None and not (policy.reference == "initial" and policy.adapter):
        base = policy.base if policy.reference == "initial" else policy.reference
        found.append(_part(f"reference of {name}", sizes[base], frozen))
    if policy.opponent_pool is not None:
        kept = frozen * policy.opponent_pool.keep
        found.append(_part(f"opponent pool of {name}, in the computer's memory", size, kept))
    return found


def _part(part: str, size: Size | None, bytes_each: int) -> Memory:
    return _counted(part, None if size is None else size.parameters, bytes_each)


def _counted(part: str, parameters: int | None, bytes_each: int) -> Memory:
    return Memory(part, parameters, None if parameters is None else parameters * bytes_each)


def _size(base: str) -> Size | None:
    try:
        return size_of(base)
    except ValueError:
        return None
