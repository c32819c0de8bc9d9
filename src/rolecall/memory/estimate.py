"""Predicts how much memory the parts of a run take and when, before any of them is made.

Each engine and each learner says what it takes (`engines/backend.py`, `learners/backend.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rolecall.config.row_lengths import longest_row, longest_sampled
from rolecall.config.schema import Config, RewardConfig
from rolecall.config.served import ServedEngineConfig
from rolecall.engines.backend import EngineBackend, engine_backends, owner_name
from rolecall.learners.backend import learner_backend
from rolecall.learners.memory import StoredWeights
from rolecall.memory import critics
from rolecall.models.batch_memory import Activations
from rolecall.models.devices import full_name, is_gpu
from rolecall.models.memory_needs import BYTES, HOST, Need, Phase, make_need, weight_needs
from rolecall.models.sizes import Size, get_size

ADAPTER_DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a device holds."""

    device: str
    phase: Phase
    num_bytes: int

    @property
    def is_device(self) -> bool:
        """Return whether it is a device that computes, and not the host."""
        return self.device != HOST


def estimate_memory(
    config: Config, *, auto: str = "cpu", activations: Activations = "measured"
) -> list[Need]:
    """Return the needs of each policy, reference, critic and opponent pool, and of the engines'
    weights and caches.

    `auto`: the device that this name stands for; `activations`: what is said about what batches
    keep, which takes seconds to measure. Raises ConfigError for an adapter that fits no layer,
    where it is measured.
    """
    planner = _Planner(config, auto=auto, activations=activations)
    needs = list(planner.needs())
    if activations == "none":
        return needs
    return needs + planner.working_memory(needs)


def served_addresses(config: Config) -> dict[str, str]:
    """Return the servers that sample a policy's weights, by policy: they take nothing here."""
    addresses = {}
    for name in config.policies:
        engine = config.get_engine(name)
        if isinstance(engine, ServedEngineConfig):
            learned = " and, to be trained, here" if name in config.trained_policies else ""
            where = engine.url or engine.label  # an SDK may know the address alone
            addresses[name] = f"at {where} (engine {engine.name}){learned}"
    return addresses


def peaks(needs: Iterable[Need]) -> list[Peak]:
    """Return, for each device, the phase in which it holds most."""
    totals: dict[tuple[str, Phase], int] = {}
    needs = list(needs)
    phases = dict.fromkeys(need.phase for need in needs)
    for device in dict.fromkeys(need.device for need in needs):
        for phase in phases:
            totals[device, phase] = sum(
                need.num_bytes or 0
                for need in needs
                if need.device == device and need.phase in ("always", phase)
            )
    devices = dict.fromkeys(device for device, _ in totals)
    most = {
        device: max((p for d, p in totals if d == device), key=lambda p: totals[device, p])
        for device in devices
    }
    return [Peak(device, phase, totals[device, phase]) for device, phase in most.items()]


class _Planner:
    def __init__(self, config: Config, *, auto: str, activations: Activations) -> None:
        self.config, self.auto, self.activations = config, auto, activations
        self.backends = engine_backends(config)
        self._sizes: dict[str, Size | None] = {}
        self._shared: set[tuple[str, str]] = set()  # bases whose frozen weights adapters share

    def needs(self) -> Iterator[Need]:
        engines = {name: b for b in self.backends for name in b.policies}
        for name in self.config.policies:
            yield from self._policy(name)
            yield from self._engine(engines[name], name)
            yield from self._reference(name)
            yield from self._opponents(name)
        for name, critic in self.config.critics.items():
            yield from self._critic(name, critic.base)
        yield from self._reward_model()

    def working_memory(self, needs: list[Need]) -> list[Need]:
        """Return of each CPU what passes are computed in: new memory, or what updates freed.

        What updates have freed stays with the process, as the top of its heap is seldom free
        (`runtime/memory.py`), and passes are computed in that. `needs`: all others.
        """
        largest: dict[str, Need] = {}
        for backend in self.backends:
            for name in backend.policies:
                size = self.size(self.config.policies[name].base)
                for need in backend.working_memory(name, size, auto=self.auto):
                    before = largest.get(need.device)
                    if before is None or _bytes(need) > _bytes(before):
                        largest[need.device] = need
        for device, need in largest.items():
            kept = _freed(self.config, needs, device)
            if kept > _bytes(need):
                label = "freed by updates and kept by the process"
                largest[device] = Need("learners", label, kept, device, "sampling")
        return list(largest.values())

    def _reward_model(self) -> Iterator[Need]:
        """Yield the weights of the reward `reward_model`; each process that plays episodes has
        one.
        """
        reward = self.config.rewards.get("reward_model")
        options = reward.options if isinstance(reward, RewardConfig) else {}
        if "model" not in options:
            return
        size = self.size(str(options["model"]))
        count = None if size is None else size.body
        each = 4 if options.get("dtype", "float32") == "float32" else 2
        device = self._device(options.get("device", "cpu"))
        yield make_need("reward model", "weights", count, each, device)

    def _device(self, name: str) -> str:
        return full_name(name, auto=self.auto)

    def size(self, base: str) -> Size | None:
        if base not in self._sizes:
            try:
                self._sizes[base] = get_size(base)
            except ValueError:
                self._sizes[base] = None
        return self._sizes[base]

    def _is_here(self, name: str) -> bool:
        """Return whether a learner, or an engine that samples models of this process, has its
        weights.
        """
        return self.config.is_embedded(name) or name in self.config.trained_policies

    def _policy(self, name: str) -> Iterator[Need]:
        config, policy = self.config, self.config.policies[name]
        if not self._is_here(name):
            return  # its engine alone has it
        learner, size = learner_backend(config, name), self.size(policy.base)
        dtype = str(learner.section.dtype)
        for device, share in learner.shares(auto=self.auto):
            owner, is_adapter = f"policy {name}", policy.adapter is not None
            if is_adapter:
                owner = f"base {policy.base}"
            if not is_adapter or (policy.base, device) not in self._shared:
                self._shared.add((policy.base, device))
                yield from weight_needs(
                    owner, size, policy.quantization, dtype, device, share=share
                )
            count = None if size is None else size.parameters
            weights = StoredWeights(owner, count, dtype, device, share)
            if policy.adapter is not None:
                count = None if size is None else size.adapter_parameters(policy.adapter)
                weights = StoredWeights(f"adapter {name}", count, ADAPTER_DTYPE, device, share)
                each = BYTES[ADAPTER_DTYPE] * share
                yield make_need(weights.owner, "weights", count, each, device)
            yield from learner.memory(weights, size, activations=self.activations)

    def _engine(self, backend: EngineBackend, name: str) -> Iterator[Need]:
        owner = owner_name(self.config, name)
        if (owner, "cache") not in self._shared:
            self._shared.add((owner, "cache"))
            size = self.size(self.config.policies[name].base)
            yield from backend.memory(name, size, auto=self.auto)

    def _reference(self, name: str) -> Iterator[Need]:
        policy = self.config.policies[name]
        if policy.reference is None or (policy.reference == "initial" and policy.adapter):
            return
        size = self.size(policy.base if policy.reference == "initial" else policy.reference)
        learner = self.config.get_learner(name)
        count, each = None if size is None else size.parameters, BYTES[learner.dtype]
        owner = f"reference of {name}"
        for device, share in learner_backend(self.config, name).shares(auto=self.auto):
            if learner.offload:
                yield make_need(owner, "weights", count, each * share, device, "credit", HOST)
            else:
                yield make_need(owner, "weights", count, each * share, device)
        if learner.offload:
            yield make_need(owner, "weights at rest", count, each, HOST)

    def _opponents(self, name: str) -> Iterator[Need]:
        policy = self.config.policies[name]
        if policy.opponent_pool is None:
            return
        size = self.size(policy.base)
        each = BYTES[self.config.get_learner(name).dtype] * policy.opponent_pool.keep
        count = None if size is None else size.parameters
        device = self._device(self.config.get_device(policy.opponent_pool.of))
        resting = HOST if is_gpu(device) else device
        yield make_need(f"opponent pool of {name}", "weights", count, each, resting)

    def _critic(self, name: str, base: str | None) -> Iterator[Need]:
        """Yield the needs of value heads, a critic with a model of its own, or utilities."""
        config, dtype = self.config, self.config.learner.dtype
        if name == "agent":
            for policy in sorted(config.trained_policies):
                yield from self._value_head(policy)
            return
        size, device = (
            None if base is None else self.size(base),
            self._device(config.learner.device),
        )
        if name in ("team", "token"):
            longest = longest_row(config, _max_length(size))
            yield from critics.joint(
                name, size, config, device=device, longest=longest, activations=self.activations
            )
        elif name == "mixer" and (size is not None or base is None):
            bases = [p.base for name, p in config.policies.items() if self._is_here(name)]
            sizes = [self.size(base) for base in bases]
            widths = [each.width for each in sizes if each is not None]
            # It may choose what is said, also in evaluations.
            longest = longest_sampled(config, _max_length(size))
            yield from critics.mixer(
                widths, size, config, device=device, longest=longest, activations=self.activations
            )
        elif base is not None:
            yield critics.frozen(name, size, dtype=dtype, device=device)

    def _value_head(self, policy: str) -> Iterator[Need]:
        config, size = self.config, self.size(self.config.policies[policy].base)
        learner = config.get_learner(policy)
        tokens = max(learner.tokens_per_batch, longest_row(config, _max_length(size)))
        for device in learner_backend(config, policy).devices(auto=self.auto):  # whole on each
            yield from critics.value_heads(
                policy, size, heads=config.critics["agent"].heads, device=device, tokens=tokens
            )


def _max_length(size: Size | None) -> int | None:
    return None if size is None else size.max_length


def _freed(config: Config, needs: list[Need], device: str) -> int:
    """Return the most that one update of this process frees on a device when it ends."""
    elsewhere = {f"update of {name}" for name in config.trained_policies if config.is_ranked(name)}
    freed: dict[str, int] = {}
    for need in needs:
        is_update = need.phase.startswith("update of ") and need.phase not in elsewhere
        if need.device == device and is_update:
            freed[need.phase] = freed.get(need.phase, 0) + _bytes(need)
    return max(freed.values(), default=0)


def _bytes(need: Need) -> int:
    return need.num_bytes or 0
