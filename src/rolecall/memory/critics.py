"""Predicts how much memory critics take: value heads, critics that read, utilities and mixers.

Legend: N = tokens of the longest batch, V = vocabulary, W = width of a state.
"""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.config.schema import Config
from rolecall.critics.utilities import num_weights
from rolecall.models.batch_memory import Activations, kept_by_last, kept_by_layer
from rolecall.models.devices import is_gpu
from rolecall.models.memory_needs import BYTES, Need, make_need, training
from rolecall.models.sizes import Size

UPDATE = "update of the critic"
CREDIT = "credit"


def value_heads(
    policy: str, size: Size | None, *, heads: int, device: str, tokens: int
) -> Iterator[Need]:
    """Yield the needs of value heads beside a policy's own model.

    They are in float32 and learn in the policy's update.
    """
    owner, update = f"value head of {policy}", f"update of {policy}"
    count = None if size is None else heads * (size.width + 1)
    yield from training(owner, count, dtype="float32", device=device, phase=update)
    read = None if size is None else tokens * size.width  # states, in float32
    yield make_need(owner, f"states of {tokens:,} tokens", read, 4, device, update)


def joint(
    name: str,
    size: Size | None,
    config: Config,
    *,
    device: str,
    longest: int,
    activations: Activations,
) -> Iterator[Need]:
    """Yield the needs of a model of its own that is trained, with an output for each agent.

    `longest`: tokens of the longest conversation.
    """
    owner, dtype = f"critic {name}", config.learner.dtype
    count = None if size is None else size.parameters
    yield from training(owner, count, dtype=dtype, device=device, phase=UPDATE)
    outputs = len(config.team)
    head = None if size is None else outputs * (size.width + 1)
    yield from training(f"head of {owner}", head, dtype="float32", device=device, phase=UPDATE)
    if activations == "none":
        return
    if size is None:
        yield Need(owner, "activations", None, device, UPDATE)
        return
    kept = kept_by_layer(size, activations, dtype=dtype, device=device)
    last = kept_by_last(size, activations, dtype=dtype, device=device)
    if kept is None or last is None:
        yield Need(owner, "activations", None, device, UPDATE)
        return
    tokens = max(config.learner.tokens_per_batch, longest)
    each = int(tokens * ((size.num_layers - 1) * kept + last))
    yield Need(owner, f"activations of {tokens:,} tokens", each, device, UPDATE)
    if copied := _head_copy(size, dtype, device):
        yield Need(owner, "the head in float32", copied, device, UPDATE)


def mixer(
    widths: list[int],
    reader: Size | None,
    config: Config,
    *,
    device: str,
    longest: int,
    activations: Activations,
) -> Iterator[Need]:
    """Utilities of the policies, whose models have these widths; what mixes them, and its reader.

    The reader is frozen. It reads one conversation of `longest` tokens at a time.
    """
    width = None if reader is None else reader.width
    count = num_weights(widths, agents=len(config.team), reader=width)
    yield from training("critic mixer", count, dtype="float32", device=device, phase=UPDATE)
    if reader is None:
        return
    owner, dtype = "reader of critic mixer", config.learner.dtype
    yield make_need(owner, "weights", reader.parameters, BYTES[dtype], device)
    states = 2 * longest * reader.width  # and their sums
    yield make_need(owner, f"states of {longest:,} tokens", states, 4, device, CREDIT)
    if activations != "none":
        kept = kept_by_layer(reader, activations, dtype=dtype, device=device)
        whole = None if kept is None else int(longest * kept)
        yield Need(owner, "one layer", whole, device, CREDIT)


def frozen(name: str, size: Size | None, *, dtype: str, device: str) -> Need:
    """Return the weights of a critic of your own; whether it trains them is not known here."""
    count = None if size is None else size.parameters
    return make_need(f"critic {name}", "weights", count, BYTES[dtype], device)


def _head_copy(size: Size, dtype: str, device: str) -> int:
    """On a CPU a head that is stored in bfloat16 computes with a copy in float32."""
    return 0 if dtype == "float32" or is_gpu(device) else 4 * size.vocabulary * size.width
