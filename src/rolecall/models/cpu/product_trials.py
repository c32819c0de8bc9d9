"""Tries which product of matrices is fastest on this processor, and remembers it in a file.

A trial takes milliseconds and its result may differ from one time to the next, but a run that goes
on later must compute the same bits. So what came out is kept by processor, version of PyTorch and
number of threads, in `products.json` of the cache folder, and one process tries at a time. Without
the file everything is tried again.
"""

from __future__ import annotations

import json
import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TypeVar, get_args

import torch
from torch import Tensor

from rolecall.models.cpu.kernels import runs_on_numba
from rolecall.models.cpu.products import Way, candidates, has_onednn, multiply
from rolecall.models.cpu.tiled_products import TiledProduct
from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.file_locks import locked_file

log = logging.getLogger("rolecall")

GAIN = 1.1  # a way is taken if it is so many times as fast as the plain one
SAME = 1e-5  # largest difference of the numbers of two ways, as a share of the largest number
ROWS = 512  # of states that are tried
LARGEST = 4096  # outputs that are tried: of a head with more the ways are theirs
WAIT_S = 60.0  # for another process that tries products
ROUNDS = 5  # in which the ways take turns, so that other work on the machine slows all of them
TRY_S = 0.001  # that a way is tried for in a round, at least once
Name = TypeVar("Name", bound=str)
Ways = tuple[Way, Way, Way]  # of a layer's output, and of the gradients of its input and weight
PLAIN: Ways = ("plain", "plain", "plain")
Table = dict[str, Ways]  # by size: "float32 128x384 in training"
_known: dict[str, Table] = {}  # by machine: what this process has read or tried
_told: set[str] = set()  # why nothing could be kept, each said once


def ways_of_training(outputs: int, inputs: int) -> Ways:
    """Return the fastest ways in float32 with many rows, tried here now or before.

    They are plain if the cache folder cannot be written: a later run could not know of others.
    """
    name, machine = f"float32 {outputs}x{inputs} in training", machine_name()
    if name not in _known.setdefault(machine, {}):
        try:
            with _locked() as file:
                kept = _read(file)
                _known[machine] |= kept.get(machine, {})
                if name not in _known[machine]:
                    _known[machine][name] = try_training_ways(outputs, inputs)
                    _write(file, kept | {machine: _known[machine]})
        except OSError as error:
            if str(error) not in _told:
                log.warning("products are not tried, the plain ones are used: %s", error)
                _told.add(str(error))
            _known[machine][name] = PLAIN
    return _known[machine][name]


@torch.no_grad()
def try_training_ways(outputs: int, inputs: int) -> Ways:
    """Time PyTorch's and oneDNN's product for the output and the two gradients of a layer."""
    random = torch.Generator().manual_seed(0)
    outputs = min(outputs, LARGEST)
    x, grad = (torch.randn(ROWS, width, generator=random) for width in (inputs, outputs))
    weight = torch.randn(outputs, inputs, generator=random)
    names: list[Way] = ["plain", "onednn"] if has_onednn(x.dtype) else ["plain"]
    fastest: list[Way] = []
    for states, right in ((x, weight), (grad, weight.t()), (grad.t(), x.t())):
        expected = states @ right.t()
        ways = {way: partial(multiply, weight=right, way=way) for way in names}
        same = {n: way for n, way in ways.items() if _agrees(way(states), expected)}
        fastest.append(_fastest(same, states))
    return fastest[0], fastest[1], fastest[2]


def _fastest(ways: Mapping[Way, Callable[[Tensor], Tensor]], x: Tensor) -> Way:
    took = _took(ways, x)
    best = min(took, key=lambda name: took[name])
    return best if took["plain"] >= GAIN * took[best] else "plain"


def _took(ways: Mapping[Name, Callable[[Tensor], Tensor]], x: Tensor) -> dict[Name, float]:
    """Return the fewest seconds that each way needs."""
    rounds = [{name: _seconds(way, x) for name, way in ways.items()} for _ in range(ROUNDS)]
    return {name: min(each[name] for each in rounds) for name in ways}


@torch.no_grad()
def speeds(outputs: int, inputs: int, rows: int, *, dtype: torch.dtype) -> dict[str, float]:
    """Return the speed of each way for such a product on this machine, in FLOP/s."""
    weight, x = torch.ones(outputs, inputs, dtype=dtype), torch.ones(rows, inputs, dtype=dtype)
    ways: dict[str, Callable[[Tensor], Tensor]] = dict(candidates(weight).items())
    if weight.dtype == torch.bfloat16 or runs_on_numba(weight):
        tiled, states = TiledProduct(weight, None), x.float()
        ways["tiled"] = lambda _: tiled.times(states)
    took = _took(ways, x)
    return {name: 2 * outputs * inputs * rows / seconds for name, seconds in took.items()}


def _agrees(product: Tensor, expected: Tensor) -> bool:
    return bool((product - expected).abs().max() <= SAME * expected.abs().max())


def _seconds(work: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Return the seconds of the quickest of some tries."""
    best, end = float("inf"), time.perf_counter() + TRY_S
    while True:
        started = time.perf_counter()
        work(x)
        now = time.perf_counter()
        best = min(best, now - started)
        if now > end:
            return best


def machine_name() -> str:
    """Return what decides it: `AMD EPYC, family 25, model 17; AVX2; torch 2.13.0; 2 threads`."""
    return "; ".join([
        processor(), torch.backends.cpu.get_cpu_capability(), f"torch {torch.__version__}",
        f"{torch.get_num_threads()} threads",
    ])  # fmt: skip


@cache
def processor() -> str:
    """Return name, family and model; providers of machines give different ones the same name."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    name = fields.get("model name") or platform.processor() or platform.machine()
    parts = [
        f"{label} {fields[key]}"
        for label, key in (("family", "cpu family"), ("model", "model"))
        if key in fields
    ]
    return ", ".join([name, *parts])


@contextmanager
def _locked() -> Iterator[Path]:
    """Yield the file while no other process reads or writes it; raises OSError."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    # Who has waited in vain once does not wait again for each size.
    wait_s = 0.0 if _told else WAIT_S
    with locked_file(folder / "products.lock", wait_s=wait_s, say=log.warning):
        yield folder / "products.json"


def _read(file: Path) -> dict[str, Table]:
    """Return the known tables by machine; a damaged file counts as none."""
    try:
        tables = json.loads(file.read_text())
        read = {m: {n: tuple(w) for n, w in table.items()} for m, table in tables.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    valid = set(get_args(Way))
    return {
        machine: {n: w for n, w in table.items() if len(w) == 3 and valid.issuperset(w)}
        for machine, table in read.items()
    }


def _write(file: Path, tables: dict[str, Table]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(tables, indent=1) + "\n")
    new.replace(file)
