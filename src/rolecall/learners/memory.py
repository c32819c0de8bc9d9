"""Predicts what training a policy takes: its optimizer, and what a batch keeps.

Full training takes 16 bytes a parameter in float32 (weight, gradient, two moments) and 18 in
bfloat16 (weight 2, gradient 4, master 4, moments 8); an adapter takes 16 beside the bytes of its
base. What a batch keeps for its backward pass is measured on a small copy of a layer
(`models/saved_activations.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rolecall.config.learners import LearnerConfig
from rolecall.config.row_lengths import longest_row
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.learners.logprobs import LARGEST_LOGITS
from rolecall.models.batch_memory import Activations, kept_by_layer
from rolecall.models.devices import is_gpu
from rolecall.models.memory_needs import BYTES, HOST, MOMENTS, Need, Phase, make_need
from rolecall.models.sizes import Size


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Weights that a learner trains, or an engine samples, on one device."""

    owner: str  # e.g. `policy solver`
    count: int | None  # None: the base is not on this machine
    dtype: str
    device: str
    share: float  # of all of them, on this device


def gathered_needs(name: str, weights: StoredWeights, size: Size, dtype: str) -> Need:
    """Return what a rank gathers of the others' shares at once."""
    label = "root and two layers, gathered"
    each = BYTES[dtype]
    return make_need(
        weights.owner, label, size.gathered_numbers, each, weights.device, f"update of {name}"
    )


def optimizer_needs(config: Config, name: str, weights: StoredWeights) -> Iterator[Need]:
    """Yield what the optimizer of a policy needs for its weights on one device."""
    learner, update = config.get_learner(name), f"update of {name}"
    owner, count, share, device = weights.owner, weights.count, weights.share, weights.device
    resting: Phase = update if learner.offload else "always"
    asleep = HOST if learner.offload else ""
    if weights.dtype != "float32":
        yield make_need(owner, "masters", count, 4 * share, device, resting, asleep)
    yield make_need(owner, "moments", count, MOMENTS * share, device, resting, asleep)
    yield make_need(owner, "gradients", count, 4 * share, device, update)
    agents = [a for a in config.team.values() if a.policy == name and a.trainable]
    if len(agents) > 1 and config.metrics.grad_norm_every != 0:
        yield make_need(owner, "gradient of one agent", count, 4 * share, device, update)
    if learner.offload:
        state = MOMENTS + (0 if weights.dtype == "float32" else 4)
        yield make_need(owner, "moments and masters at rest", count, state, HOST)


def batch_needs(
    config: Config,
    name: str,
    weights: StoredWeights,
    size: Size | None,
    *,
    activations: Activations,
) -> Iterator[Need]:
    """Yield what one forward and backward pass of a policy holds.

    Raises ConfigError for an adapter that fits no layer, where it is measured.
    """
    if activations == "none":
        return
    owner, device, policy = weights.owner, weights.device, config.policies[name]
    update, learner = f"update of {name}", config.get_learner(name)
    kept = None
    try:
        if size is not None:
            kept = kept_by_layer(
                size,
                activations,
                dtype=learner.dtype,
                device=device,
                adapter=policy.adapter,
            )
    except ValueError as error:
        raise ConfigError(f"policies.{name}.adapter: {error}") from error
    if size is None or kept is None:
        yield Need(owner, "activations", None, device, update)
        return
    tokens = max(learner.tokens_per_batch, longest_row(config, size.max_length))
    again = learner.checkpoint_activations  # only the inputs of layers are kept
    each = size.num_layers * (BYTES[learner.dtype] * size.width if again else kept)
    yield Need(owner, f"activations of {tokens:,} tokens", int(tokens * each), device, update)
    rows = min(tokens, max(1, LARGEST_LOGITS // size.vocabulary))
    copies, lost_copies = _copies_of_logits(config, name, device)
    logits = copies * 4 * rows * size.vocabulary
    if learner.dtype != "float32" and not is_gpu(device):
        logits += 4 * size.vocabulary * size.width  # the head computes in float32
    layer = int(tokens * kept) if again else 0  # computed when the logits are gone
    label = "one layer, computed again" if layer > logits else f"logits of {rows:,} tokens"
    yield Need(owner, label, max(logits, layer), device, update)
    if not is_gpu(device):
        lost = _layers_lost(learner, size.num_layers, has_adapter=policy.adapter is not None)
        holes = int(lost * tokens * kept) + lost_copies * 4 * rows * size.vocabulary
        yield Need(owner, "holes that the allocator keeps, at most", holes, device, update)


def _copies_of_logits(config: Config, name: str, device: str) -> tuple[int, int]:
    """Return how many copies of a chunk's logits a backward pass holds at once, and how many would
    fill the holes that they leave in the heap of a CPU's process.

    An untrained head needs fewer, and so does the loop for a CPU, which is not taken for the
    gradients of entropies.
    """
    agents = [agent for agent in config.team.values() if agent.policy == name]
    credits = [agent.algorithm or config.algorithm for agent in agents]
    is_trained = config.policies[name].adapter is None
    if any(credit.options.get("entropy") for credit in credits):
        return 5, 4 if is_trained else 0
    if is_gpu(device):
        return 5 if is_trained else 2, 0
    return (2, 3) if is_trained else (1, 0)


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
