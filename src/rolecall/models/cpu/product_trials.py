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
from rolecall.models.cpu.products import ROWS, Way, candidates, has_onednn, multiply
from rolecall.models.cpu.tiled_products import TiledProduct
from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.file_locks import locked_file

log = logging.getLogger("rolecall")

GAIN = 1.1  # a way is taken if it is so many times as fast as the plain one
SAME = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7}  # difference, as a share of the largest
LARGEST = 4096  # outputs that are tried in training: of a head with more the ways are theirs
TRAINED = "in training"
WAIT_S = 60.0  # for another process that tries products
ROUNDS = 5  # in which the ways take turns, so that other work on the machine slows all of them
TRY_S = 0.001  # that a way is tried for in a round, at least once
PLAIN: tuple[Way, ...] = tuple("plain" for _ in ROWS)
Name = TypeVar("Name", bound=str)
Table = dict[str, tuple[Way, ...]]  # "bfloat16 128x384" -> a way for each of ROWS
_known: dict[str, Table] = {}  # by machine: what this process has read or tried
_told: set[str] = set()  # why nothing could be kept, each said once


def choose_ways(outputs: int, inputs: int) -> tuple[Way, ...]:
    """Choose the fastest way to multiply with a bfloat16 weight of this size for each of `ROWS`.

    Plain ones if the cache folder cannot be written: a later run could not know of others.
    """
    return _remembered(
        f"bfloat16 {outputs}x{inputs}", lambda: try_ways(outputs, inputs), plain=PLAIN
    )


def ways_of_training(outputs: int, inputs: int) -> tuple[Way, Way, Way]:
    """Return the fastest ways in float32 with many rows.

    They are those of the output, and of the gradients of input and weight.
    """
    name = f"float32 {outputs}x{inputs} {TRAINED}"
    ways = _remembered(name, lambda: try_training_ways(outputs, inputs), plain=PLAIN[:3])
    return ways[0], ways[1], ways[2]


def _remembered(
    name: str, trial: Callable[[], tuple[Way, ...]], *, plain: tuple[Way, ...]
) -> tuple[Way, ...]:
    """Return what a trial gave here, now or before; `plain` if the cache cannot be written."""
    machine = machine_name()
    if name not in _known.setdefault(machine, {}):
        try:
            with _locked() as file:
                kept = _read(file)
                _known[machine] |= kept.get(machine, {})
                if name not in _known[machine]:
                    _known[machine][name] = trial()
                    _write(file, kept | {machine: _known[machine]})
        except OSError as error:
            if str(error) not in _told:
                log.warning("products are not tried, the plain ones are used: %s", error)
                _told.add(str(error))
            _known[machine][name] = plain
    return _known[machine][name]


@torch.no_grad()
def try_ways(outputs: int, inputs: int) -> tuple[Way, ...]:
    """Time each way with random numbers, and take the fastest whose numbers are the plain one's."""
    random, dtype = torch.Generator().manual_seed(0), torch.bfloat16
    weight = torch.randn(outputs, inputs, generator=random).to(dtype)
    ways = candidates(weight)
    fastest: list[Way] = []
    for rows in ROWS:
        x = torch.randn(rows, inputs, generator=random).to(dtype)
        expected = x.float() @ weight.float().t()
        same = {n: way for n, way in ways.items() if _agrees(way(x), expected, dtype)}
        if left_out := sorted(ways.keys() - same.keys()):
            log.warning("product %s of %sx%s gives other numbers", left_out, outputs, inputs)
        fastest.append(_fastest(same, x) if "plain" in same else "plain")
    return tuple(fastest)


@torch.no_grad()
def try_training_ways(outputs: int, inputs: int) -> tuple[Way, Way, Way]:
    """Time PyTorch's and oneDNN's product for the output and the two gradients of a layer."""
    random = torch.Generator().manual_seed(0)
    outputs = min(outputs, LARGEST)
    x, grad = (torch.randn(ROWS[-1], width, generator=random) for width in (inputs, outputs))
    weight = torch.randn(outputs, inputs, generator=random)
    names: list[Way] = ["plain", "onednn"] if has_onednn(x.dtype) else ["plain"]
    fastest: list[Way] = []
    for states, right in ((x, weight), (grad, weight.t()), (grad.t(), x.t())):
        expected = states @ right.t()
        ways = {way: partial(multiply, weight=right, way=way) for way in names}
        same = {n: way for n, way in ways.items() if _agrees(way(states), expected, x.dtype)}
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
    if runs_on_numba(weight):
        ways["tiled"] = TiledProduct(weight, None).times
    took = _took(ways, x)
    return {name: 2 * outputs * inputs * rows / seconds for name, seconds in took.items()}


def _agrees(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    return bool((found.float() - wanted).abs().max() <= SAME[dtype] * wanted.abs().max())


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
        machine: {n: w for n, w in table.items() if len(w) == _many(n) and valid.issuperset(w)}
        for machine, table in read.items()
    }


def _many(name: str) -> int:
    return 3 if name.endswith(TRAINED) else len(ROWS)


def _write(file: Path, tables: dict[str, Table]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(tables, indent=1) + "\n")
    new.replace(file)
