"""Predicts how much memory the parts of a run take and when, before any of them is made.

Full training takes 16 bytes a parameter in float32 (weight, gradient, two moments) and 18 in
bfloat16 (weight 2, gradient 4, master 4, moments 8); an adapter takes 16 beside the bytes of its
base. What a batch keeps for its backward pass is measured on a small copy of a layer
(`models/saved_activations.py`).

Legend: N = tokens of the longest batch, V = vocabulary, W = width of a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rolecall.config.engines import LocalEngineConfig, OwnEngineConfig
from rolecall.config.learners import FsdpLearnerConfig, LearnerConfig
from rolecall.config.schema import Config, RewardConfig
from rolecall.config.served import ServedEngineConfig
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import ConfigError
from rolecall.engines.local import cached_tokens, working_memory
from rolecall.engines.local.page_allocator import pages_of
from rolecall.learners.logprobs import LARGEST_LOGITS
from rolecall.memory import critics
from rolecall.models.batch_memory import Activations, kept_by_layer
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.memory_needs import BYTES, HOST, MOMENTS, Need, Phase, need_of
from rolecall.models.quantized import linear_layers, num_bytes
from rolecall.models.sizes import Size, size_of
from rolecall.placement.devices import (
    engine_devices,
    full_name,
    is_gpu,
    learner_devices,
    takes_turns,
)

ADAPTER_DTYPE = "float32"
LOGITS_HELD = 5  # copies of a chunk's logits that its backward pass holds at once
LOGITS_LOST = 4  # copies that would fill the holes that they leave in the heap of a CPU's process
VLLM_CACHE_GB = 2.0  # what it needs at least; on a GPU it takes what `engine.memory` leaves


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


def memory_of(
    config: Config, *, auto: str = "cpu", activations: Activations = "measured"
) -> list[Need]:
    """Each policy, reference, critic, opponent pool, the engines' weights and caches.

    `auto`: the device that this name stands for; `activations`: what is said about what batches
    keep, which takes seconds to measure. Raises ConfigError for an adapter that fits no layer,
    where it is measured.
    """
    planner = _Planner(config, auto=auto, activations=activations)
    needs = list(planner.needs())
    if activations == "none":
        return needs
    return needs + working_memory.working_memory(config, planner.size, needs, auto=auto)


def served_at(config: Config) -> dict[str, str]:
    """Return the servers that sample a policy's weights, by policy: they take nothing here."""
    addresses = {}
    for name in config.policies:
        engine = config.engine_of(name)
        if isinstance(engine, ServedEngineConfig):
            learned = " and, to be trained, here" if name in config.trained else ""
            addresses[name] = f"at {engine.url} (engine {engine.name}){learned}"
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


def longest_row(config: Config, size: Size | None) -> int:
    """Return the tokens of the longest row that is trained on, as far as the config says it."""
    return cached_tokens.longest_row(config, None if size is None else size.max_length)


def longest_sampled(config: Config, size: Size | None) -> int:
    """Return the tokens of the longest row that is sampled, evaluations included."""
    return cached_tokens.longest_sampled(config, None if size is None else size.max_length)


class _Planner:
    def __init__(self, config: Config, *, auto: str, activations: Activations) -> None:
        self.config, self.auto, self.activations = config, auto, activations
        self._sizes: dict[str, Size | None] = {}
        self._shared: set[tuple[str, str]] = set()  # bases whose frozen weights adapters share

    def needs(self) -> Iterator[Need]:
        for name in self.config.policies:
            yield from self._policy(name)
            yield from self._engine(name)
            yield from self._reference(name)
            yield from self._opponents(name)
        for name, critic in self.config.critics.items():
            yield from self._critic(name, critic.base)
        yield from self._reward_model()

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
        yield need_of("reward model", "weights", count, each, device)

    def _device(self, name: str) -> str:
        return full_name(name, auto=self.auto)

    def _places(self, name: str) -> list[tuple[str, float]]:
        """Return the devices that a policy's learner uses, each with its share of the weights."""
        devices = learner_devices(self.config, name, auto=self.auto)
        is_shared = isinstance(self.config.learner_of(name), FsdpLearnerConfig)
        return [(device, 1 / len(devices) if is_shared else 1.0) for device in devices]

    def size(self, base: str) -> Size | None:
        if base not in self._sizes:
            try:
                self._sizes[base] = size_of(base)
            except ValueError:
                self._sizes[base] = None
        return self._sizes[base]

    def _is_here(self, name: str) -> bool:
        """Return whether a learner, or an engine that samples models of this process, has its
        weights.
        """
        embedded = isinstance(self.config.engine_of(name), LocalEngineConfig | OwnEngineConfig)
        here = embedded and not self.config.is_replicated(name)
        return here or name in self.config.trained

    def _policy(self, name: str) -> Iterator[Need]:
        config, policy = self.config, self.config.policies[name]
        trained = name in config.trained
        if not self._is_here(name):
            return  # its engine alone has it
        learner, size = config.learner_of(name), self.size(policy.base)
        whole = None if size is None else size.parameters
        owner, count, dtype = f"policy {name}", whole, str(learner.dtype)
        if policy.adapter is not None:
            owner, dtype = f"adapter {name}", ADAPTER_DTYPE
            count = None if size is None else size.adapter_parameters(policy.adapter)
        for device, share in self._places(name):
            if policy.adapter is None:
                yield from self._weights(name, owner, size, dtype, device, share)
            else:
                if (policy.base, device) not in self._shared:
                    self._shared.add((policy.base, device))
                    base = f"base {policy.base}"
                    yield from self._weights(name, base, size, learner.dtype, device, share)
                yield need_of(owner, "weights", count, BYTES[dtype] * share, device)
            if size is not None and share < 1:
                gathered = size.gathered
                label, update = "root and two layers, gathered", f"update of {name}"
                yield need_of(owner, label, gathered, BYTES[learner.dtype], device, update)
            if trained:
                yield from self._training(name, owner, count, dtype, device, share)
                yield from self._batch(name, owner, size, device)

    def _weights(
        self, name: str, owner: str, size: Size | None, dtype: str, device: str, share: float = 1.0
    ) -> Iterator[Need]:
        """Yield the weights in the policy's quantization, with the largest layer unpacked."""
        kind = self.config.policies[name].quantization
        if kind == "none" or size is None:
            count = None if size is None else size.parameters
            yield need_of(owner, "weights", count, BYTES[dtype] * share, device)
            return
        layers = [layer.weight.numel() for layer in linear_layers(size.model).values()]
        rest = BYTES[dtype] * (size.parameters - sum(layers))
        held = int(num_bytes(size.model, kind) + rest)
        yield Need(owner, f"weights in {kind}", held, device, parameters=size.parameters)
        yield Need(owner, "one layer unpacked", BYTES[dtype] * max(layers, default=0), device)

    def _training(
        self, name: str, owner: str, count: int | None, dtype: str, device: str, share: float
    ) -> Iterator[Need]:
        """Yield what the optimizer needs."""
        learner, update = self.config.learner_of(name), f"update of {name}"
        resting: Phase = update if learner.offload else "always"
        asleep = HOST if learner.offload else ""
        if dtype != "float32":
            yield need_of(owner, "masters", count, 4 * share, device, resting, asleep)
        yield need_of(owner, "moments", count, MOMENTS * share, device, resting, asleep)
        yield need_of(owner, "gradients", count, 4 * share, device, update)
        agents = [a for a in self.config.team.values() if a.policy == name and a.trainable]
        if len(agents) > 1 and self.config.metrics.grad_norm_every != 0:
            yield need_of(owner, "gradient of one agent", count, 4 * share, device, update)
        if learner.offload:
            state = MOMENTS + (0 if dtype == "float32" else 4)
            yield need_of(owner, "moments and masters at rest", count, state, HOST)

    def _batch(self, name: str, owner: str, size: Size | None, device: str) -> Iterator[Need]:
        """Yield what one forward and backward pass holds."""
        if self.activations == "none":
            return
        config, policy = self.config, self.config.policies[name]
        update, learner = f"update of {name}", config.learner_of(name)
        kept = None
        try:
            if size is not None:
                kept = kept_by_layer(
                    size,
                    self.activations,
                    dtype=learner.dtype,
                    device=device,
                    adapter=policy.adapter,
                )
        except ValueError as error:
            raise ConfigError(f"policies.{name}.adapter: {error}") from error
        if size is None or kept is None:
            yield Need(owner, "activations", None, device, update)
            return
        tokens = max(learner.tokens_per_batch, longest_row(config, size))
        again = learner.checkpoint_activations  # only the inputs of layers are kept
        each = size.num_layers * (BYTES[learner.dtype] * size.width if again else kept)
        yield Need(owner, f"activations of {tokens:,} tokens", int(tokens * each), device, update)
        rows = min(tokens, max(1, LARGEST_LOGITS // size.vocabulary))
        logits = self._logits_held(name, device) * 4 * rows * size.vocabulary
        if learner.dtype != "float32" and not is_gpu(device):
            logits += 4 * size.vocabulary * size.width  # the head computes in float32
        layer = int(tokens * kept) if again else 0  # computed when the logits are gone
        label = "one layer, computed again" if layer > logits else f"logits of {rows:,} tokens"
        yield Need(owner, label, max(logits, layer), device, update)
        if not is_gpu(device):
            lost = _layers_lost(learner, size.num_layers, has_adapter=policy.adapter is not None)
            holes = int(lost * tokens * kept)
            if policy.adapter is None:
                holes += LOGITS_LOST * 4 * rows * size.vocabulary
            yield Need(owner, "holes that the allocator keeps, at most", holes, device, update)

    def _logits_held(self, name: str, device: str) -> int:
        """Copies of a chunk's logits at once; of a head that is not trained they are not kept."""
        agents = [agent for agent in self.config.team.values() if agent.policy == name]
        credits = [agent.algorithm or self.config.algorithm for agent in agents]
        if self.config.policies[name].adapter is None or any(
            credit.options.get("entropy") for credit in credits
        ):
            return LOGITS_HELD
        return 1 if device == "cpu" else 2

    def _engine(self, name: str) -> Iterator[Need]:
        config, policy = self.config, self.config.policies[name]
        engine = config.engine_of(name)
        if isinstance(engine, ServedEngineConfig):
            return  # its memory is the server's
        size = self.size(policy.base)
        owner = f"engine of {policy.base if policy.adapter else name}"
        if (owner, "cache") in self._shared:
            return
        self._shared.add((owner, "cache"))
        dtype = config.sampling_dtype(name)
        if isinstance(engine, VllmEngineConfig):
            yield from self._vllm(owner, name, engine, size)
            return
        for [device] in engine_devices(config, name, auto=self.auto):
            if config.is_replicated(name) or (
                name in config.trained and config.weights_are_apart(name)
            ):
                yield from self._weights(name, owner, size, dtype, device)
            if isinstance(engine, LocalEngineConfig):
                stays = is_gpu(device) and not engine.free_on_update
                phase: Phase = "always" if stays else "sampling"
                on_cpu = not is_gpu(device)
                kept = "float32" if on_cpu else dtype  # keys and values
                cache = self._cache(name, engine, size, kept, is_lazy=on_cpu)
                yield Need(owner, _cache_of(cache, size, kept, config), cache, device, phase)
                if on_cpu and size is not None and policy.quantization == "none":
                    yield _packed(owner, size, dtype, device)

    def _cache(
        self, name: str, engine: LocalEngineConfig, size: Size | None, dtype: str, *, is_lazy: bool
    ) -> int:
        """Bytes of `cache_gb`, at most what rows can fill.

        `is_lazy`: on a CPU only what is written takes memory.
        """
        most = int(engine.cache_gb * 1e9)
        if size is None or not size.cache_per_token:
            return most
        tokens = engine.max_sequences * pages_of(size.max_length) * PAGE
        if is_lazy and not self.config.is_replicated(name):
            expected = cached_tokens.cached_tokens(self.config, name, engine, size.max_length)
            tokens = min(tokens, expected)
        return min(most, tokens * size.cache_per_token * BYTES[dtype])

    def _vllm(
        self, owner: str, name: str, engine: VllmEngineConfig, size: Size | None
    ) -> Iterator[Need]:
        """Weights and cache on its GPUs; both sleep while weights are updated on one of them."""
        dtype = self.config.sampling_dtype(name)
        sleeps = takes_turns(self.config, name, auto=self.auto)
        phase: Phase = "sampling" if sleeps else "always"
        count = None if size is None else size.parameters
        for devices in engine_devices(self.config, name, auto=self.auto):
            for device in devices:
                each = BYTES[dtype] / len(devices)
                yield need_of(owner, "weights", count, each, device, phase, HOST if sleeps else "")
                cache = int((engine.cache_gb or VLLM_CACHE_GB) * 1e9)
                label = _cache_of(cache * len(devices), size, dtype, self.config)
                yield Need(owner, label, cache, device, phase)

    def _reference(self, name: str) -> Iterator[Need]:
        policy = self.config.policies[name]
        if policy.reference is None or (policy.reference == "initial" and policy.adapter):
            return
        size = self.size(policy.base if policy.reference == "initial" else policy.reference)
        learner = self.config.learner_of(name)
        count, each = None if size is None else size.parameters, BYTES[learner.dtype]
        owner = f"reference of {name}"
        for device, share in self._places(name):
            if learner.offload:
                yield need_of(owner, "weights", count, each * share, device, "credit", HOST)
            else:
                yield need_of(owner, "weights", count, each * share, device)
        if learner.offload:
            yield need_of(owner, "weights at rest", count, each, HOST)

    def _opponents(self, name: str) -> Iterator[Need]:
        policy = self.config.policies[name]
        if policy.opponent_pool is None:
            return
        size = self.size(policy.base)
        each = BYTES[self.config.learner_of(name).dtype] * policy.opponent_pool.keep
        count = None if size is None else size.parameters
        device = self._device(self.config.device_of(policy.opponent_pool.of))
        resting = HOST if is_gpu(device) else device
        yield need_of(f"opponent pool of {name}", "weights", count, each, resting)

    def _critic(self, name: str, base: str | None) -> Iterator[Need]:
        """Yield the needs of value heads, a critic with a model of its own, or utilities."""
        config, dtype = self.config, self.config.learner.dtype
        if name == "agent":
            for policy in sorted(config.trained):
                yield from self._value_head(policy)
            return
        size, device = (
            None if base is None else self.size(base),
            self._device(config.learner.device),
        )
        if name == "team":
            longest = longest_row(config, size)
            yield from critics.joint(
                name, size, config, device=device, longest=longest, activations=self.activations
            )
        elif name == "mixer" and (size is not None or base is None):
            bases = [p.base for name, p in config.policies.items() if self._is_here(name)]
            sizes = [self.size(base) for base in bases]
            widths = [each.width for each in sizes if each is not None]
            longest = longest_sampled(config, size)  # it may choose what is said, also in those
            yield from critics.mixer(
                widths, size, config, device=device, longest=longest, activations=self.activations
            )
        elif base is not None:
            yield critics.frozen(name, size, dtype=dtype, device=device)

    def _value_head(self, policy: str) -> Iterator[Need]:
        config, size = self.config, self.size(self.config.policies[policy].base)
        learner = config.learner_of(policy)
        tokens = max(learner.tokens_per_batch, longest_row(config, size))
        for device, _ in self._places(policy):  # whole on each rank
            yield from critics.value_heads(
                policy, size, heads=config.critics["agent"].heads, device=device, tokens=tokens
            )


def _packed(owner: str, size: Size, dtype: str, device: str) -> Need:
    """Copies of weights as a processor's products read them: in bfloat16 if those are the fastest.

    The head is one of float32 whatever its weights are, which are turned into float32 first.
    """
    layers = sum(layer.weight.numel() for layer in linear_layers(size.model).values())
    count = layers + size.embedding
    held = BYTES[dtype] * layers + 4 * size.embedding * (1 if dtype == "float32" else 2)
    return Need(owner, "weights laid out for products, at most", held, device, parameters=count)


def _layers_lost(learner: LearnerConfig, num_layers: int, *, has_adapter: bool) -> float:
    """Return how many layers' activations would fill the holes that updates leave in the heap.

    glibc, which is asked for room to align, does not put a tensor where one of the same size was
    freed. The numbers are a little above what was measured with two batches of 4,096 tokens in an
    update: 0.9 of 8 layers with whole weights, 3.0 in bfloat16; with adapters 1.1 of 3, 4.4 of 8
    and 10.5 of 30 layers, 8.9 of 8 in bfloat16, where states are copied, and 4.1 of 8 where layers
    are computed again.
    """
    if not has_adapter:
        return 1.0 if learner.dtype == "float32" else 4.5
    if learner.dtype != "float32":
        return 11.0
    if learner.checkpoint_activations:
        return 5.5
    return min(0.7 * num_layers, 3.4 + 0.28 * num_layers)


def _cache_of(cache: int, size: Size | None, dtype: str, config: Config) -> str:
    """Names a cache by what it holds."""
    if size is None or not size.cache_per_token:
        return "keys and values"
    tokens = cache // (size.cache_per_token * BYTES[dtype])
    rows = tokens // longest_sampled(config, size)
    return f"keys and values of {tokens:,} tokens, {rows:,} of the longest rows"
