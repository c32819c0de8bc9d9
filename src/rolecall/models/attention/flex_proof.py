"""Tries FlexAttention out before it is used, and switches it off on a device where it fails.

FlexAttention is compiled, which takes a compiler, Triton, and a device that both of them know. It
only saves time. So what cannot be compiled, or says something else than the plain way, costs time
and one notice, never a run. Both ways are given by their layout: this file decides between them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from threading import RLock
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint

from rolecall.core.errors import first_line

notices = logging.getLogger("rolecall.notices")

Use = Literal["training", "decoding"]
Place = tuple[Use, str]  # what for, and on which device
Pairs = Iterable[tuple[Tensor, Tensor]]

# Engine and learner may compute in two threads. One that holds it may fail while it tries out.
_lock = RLock()
_unfit: dict[Place, str] = {}  # why it is switched off
_held: dict[Place, set[Hashable]] = {}  # kinds of attention that were tried out


def attend_checked(
    use: Use,
    device: torch.device,
    *,
    kind: Hashable,
    tried: Callable[[], Pairs],
    flex: Callable[[], Tensor],
    plain: Callable[[], Tensor],
) -> Tensor:
    """Return `flex()`, or `plain()` where FlexAttention fails for this use and device.

    `kind`: everything a kernel is compiled for except the number of tokens; the first call of each
    compares. `tried` yields pairs of tensors, FlexAttention's and those of the plain way. A device
    without memory is no fault of FlexAttention's: torch.OutOfMemoryError is raised.
    """
    key = (use, str(device))
    with _lock:
        if key not in _unfit and kind not in _held.setdefault(key, set()):
            _try_out(key, tried)
            _held[key].add(kind)
    if key not in _unfit:
        try:
            return flex()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # each number of tokens is compiled anew
            # A layer that is computed again is left by an exception when enough of it is there.
            if type(error).__module__ == checkpoint.__name__:
                raise
            _switch_off(key, _said_by(error))
    return plain()


def unfit(use: Use, device: torch.device) -> str:
    """Return why FlexAttention is switched off, or "" where nothing has failed yet."""
    return _unfit.get((use, str(device)), "")


def was_tried(use: Use, device: torch.device) -> bool:
    """Return whether FlexAttention was compared with the plain way for this use."""
    return bool(_held.get((use, str(device))))


def forget() -> None:
    """Everything is tried out anew."""
    with _lock:
        _unfit.clear()
        _held.clear()


def bound(dtype: torch.dtype) -> float:
    """Return the largest difference that rounding makes, as a share of the largest number.

    Less than float32: weights, results and the scores' gradients are rounded once each, by half a
    unit in the last place at most, and gradients are sums of such numbers; 8 units are several
    times that. Float32: sums in another order differ by about 1e-6, and where TF32 is allowed
    products by 5e-4. A pair too many or too few differs by the share of a token in what another one
    sees, which is all of it for the first tokens of a row.
    """
    if dtype not in (torch.float32, torch.float64):
        return 8 * torch.finfo(dtype).eps
    return 1e-4 if torch.get_float32_matmul_precision() == "highest" else 4e-3


def _try_out(place: Place, tried: Callable[[], Pairs]) -> None:
    """Outside of whatever records what a pass saves: it is no part of that pass."""
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            saved_tensors_hooks(lambda x: x, lambda x: x),
        ):
            apart = [
                (_difference(actual, expected), bound(actual.dtype)) for actual, expected in tried()
            ]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of a compiler, of Triton, of what is not installed
        _switch_off(place, _said_by(error))
        return
    worst, most = max(apart, key=lambda pair: pair[0] / pair[1])
    if not worst <= most:
        _switch_off(place, f"it differs by {worst:.2g} of the largest number")


def _said_by(error: Exception) -> str:
    """Return what was wrong; PyTorch's compiler wraps it in an error that says who raised it."""
    inner = getattr(error, "inner_exception", None)
    return first_line(inner if isinstance(inner, Exception) else error)


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a share of the largest number; infinite if one is NaN."""
    apart = (found.detach().double() - expected.detach().double()).abs().max()
    share = float(apart / expected.detach().double().abs().max().clamp(min=1e-30))
    return share if share == share else float("inf")


def _switch_off(place: Place, why: str) -> None:
    with _lock:
        if place in _unfit:
            return
        _unfit[place] = why
    notices.warning(
        "FlexAttention does not hold on %s for %s, whose attention is computed without it: slower, "
        "with more memory (%s)",
        place[1], place[0], why,
    )  # fmt: skip
