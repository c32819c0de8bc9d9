"""A CPU that pretends to be a GPU: what no kernel is needed for can be tested on it.

Tensors of the device "cuda" are wrappers around tensors of the CPU, which compute. An operation on
tensors of both devices is an error, and so is numpy on a tensor of the "GPU", as on a real one. So
tests find what was left on the other device, and what waits. That CUDA's kernels run, or are right,
they do not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")  # where PyTorch's own code thinks that all of it is
ASKED = torch.device("cpu", 0)  # where a caller wants something
PROPERTIES = SimpleNamespace(total_memory=2**36)
WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "masked_select"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}  # indices may be on the CPU


class OnGpu(Tensor):
    """Says that it is on the GPU; `inner` is not."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGpu:
        made: OnGpu = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=CPU,
        )  # fmt: skip
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    def tolist(self) -> Any:
        PretendGpu.waited += 1
        return self.inner.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class PretendGpu(TorchDispatchMode):
    waited = 0
    """How often the CPU and the GPU waited for one another; a recorded step must not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class Moves(TorchFunctionMode):
    """Tensors move by operations that the other mode sees; PyTorch would ask a real device first.

    "cuda" is cuda:0.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs["device"] = _numbered(kwargs["device"])
        if func in (torch.tensor, torch.as_tensor) and "device" in kwargs:
            target = kwargs.pop("device")
            made = func(*args, **kwargs)
            return made if target is None else made.to(target)
        if func is Tensor.cpu:
            func, args = Tensor.to, (args[0], ASKED)
        if func is Tensor.to:
            return _moved(*map(_numbered, args), **kwargs)
        return func(*args, **kwargs)


def _moved(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Tensor.to"""
    other = next((a for a in (*args, kwargs.get("other")) if isinstance(a, Tensor)), None)
    given = [a for a in (*args, kwargs.get("device")) if isinstance(a, str | torch.device)]
    types = [a for a in (*args, kwargs.get("dtype")) if isinstance(a, torch.dtype)]
    device = torch.device(given[0]) if given else x.device if other is None else other.device
    dtype = types[0] if types else x.dtype if other is None else other.dtype
    if device.type == x.device.type and dtype == x.dtype:
        return x
    moved: Tensor = torch.ops.aten._to_copy.default(x, dtype=dtype, device=device)
    return moved


def _numbered(device: Any) -> Any:
    known = {"cuda": GPU, "cpu": ASKED}
    return known.get(str(device), device) if isinstance(device, str | torch.device) else device


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = list(_tensors((args, list(kwargs.values()))))
    on_gpu = [x for x in tensors if isinstance(x, OnGpu)]
    mixed = [x for x in tensors if not isinstance(x, OnGpu) and x.dim() > 0] if on_gpu else []
    name, target = func.overloadpacket.__name__, kwargs.get("device")
    moves = (
        mixed if name == "copy_" else name == "_to_copy" and target == (ASKED if on_gpu else GPU)
    )
    indexed = name in INDEXED and isinstance(args[0], OnGpu)
    counted = indexed and any(x.dtype == torch.bool for x in _tensors(args[1]))
    PretendGpu.waited += bool(moves or counted or (indexed and mixed) or name in WAITS)
    backward = torch._C._current_graph_task_id() != -1  # PyTorch makes zeros where it thinks it is
    if mixed and not (moves or indexed or backward):
        raise RuntimeError(f"{name}: expected all tensors to be on one device, cuda:0 and cpu")
    plain_args, plain_kwargs = _inner(args), {key: _inner(x) for key, x in kwargs.items()}
    if target in (GPU, ASKED):
        plain_kwargs["device"] = CPU
    if func is torch.ops.aten.mm.dtype:  # a CPU has no kernel that sums in another dtype
        first, second, dtype = plain_args
        func, plain_args = torch.ops.aten.mm.default, (first.to(dtype), second.to(dtype))
    out = func(*plain_args, **plain_kwargs)
    if target not in (None, CPU):
        wrap = target == GPU
    elif name == "copy_":
        wrap = isinstance(args[0], OnGpu)
    else:
        wrap = bool(on_gpu)
    if not wrap:
        return out
    wrapped = _wrapped(out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _tensors(one)


def _wrapped(out: Any) -> Any:
    if isinstance(out, Tensor):
        return OnGpu(out)
    return type(out)(map(_wrapped, out)) if type(out) in (list, tuple) else out


def _inner(given: Any) -> Any:
    if isinstance(given, OnGpu):
        return given.inner
    if type(given) in (list, tuple):
        return type(given)(_inner(one) for one in given)
    return given


@contextmanager
def pretend_gpu() -> Iterator[torch.device]:
    """Inside, "cuda" is a device of this process."""
    with (
        mock.patch("torch.__future__._swap_module_params_on_conversion", True),
        mock.patch("torch.cuda.get_device_properties", return_value=PROPERTIES),
        mock.patch("torch.cuda._lazy_init"),
        mock.patch("torch.cuda.is_current_stream_capturing", return_value=False),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.device_count", return_value=1),
        mock.patch("torch.cuda.get_rng_state"),
        mock.patch("torch.cuda.set_rng_state"),
        PretendGpu(),
        Moves(),
    ):
        yield GPU
