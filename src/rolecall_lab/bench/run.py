"""Runs benchmarks by name, prints their ratios and returns a header and records as data."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rolecall.runtime.consoles import PlainConsole
from rolecall_lab.bench import Benchmark
from rolecall_lab.bench.all import BENCHMARKS
from rolecall_lab.bench.machine import header
from rolecall_lab.bench.pairs import run_pairs
from rolecall_lab.bench.records import Record, record

# Peer -> the module that it needs.
NEEDS = {
    "transformers": "transformers", "vllm": "vllm", "trl": "trl", "padded": "torch",
    "llama.cpp": "llama_cpp", "comlrl": "comlrl", "openvino": "openvino_genai",
}  # fmt: skip


def bench(
    names: Sequence[str] | None = None,
    *,
    pairs: int = 5,
    smoke: bool = False,
    peers: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, Any]:
    """Run these benchmarks (all, if none is named) against the peers that are installed.

    `peers`: only against these. Says which peers are not installed, and goes on after a side that
    died: `missing` and `failed` name them. Raises ValueError for an unknown name or less than one
    pair, before anything runs.
    """
    if pairs < 1:
        raise ValueError(f"pairs: at least 1 is needed, not {pairs}")
    if unknown := sorted(set(peers) - NEEDS.keys()):
        raise ValueError(f"no peer {unknown[0]!r}; there are {', '.join(NEEDS)}")
    console = console or PlainConsole()
    chosen = _chosen(names or list(BENCHMARKS), peers=peers)
    missing = missing_peers(chosen)
    for peer in missing:
        console.print(f"{peer} is not installed: nothing is compared with it (`make bench` does)")
    records: list[Record] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for benchmark in chosen:
            for peer in [p for p in benchmark.peers if p not in missing] or ["none"]:
                try:
                    measurements = run_pairs(
                        benchmark, peer, number=pairs, smoke=smoke, folder=Path(folder)
                    )
                except RuntimeError as error:  # the boundary to other people's processes
                    failed.append(f"{benchmark.name} against {peer}: {error}")
                    console.print(f"FAILED {failed[-1]}", markup=False)
                    continue
                records.append(record(benchmark, peer, measurements))
                console.print(line(records[-1]), markup=False, soft_wrap=True)
    return {
        "header": header() | {"smoke": smoke, "missing": missing, "failed": failed},
        "records": [asdict(one) for one in records],
    }


def _chosen(names: Sequence[str], *, peers: Sequence[str] = ()) -> list[Benchmark]:
    """Return benchmarks by name or by family: `conductor` is conductor-ids, conductor-chat ...

    `peers`: keep only the benchmarks with one of these peers, and drop their other peers.
    """
    selected: set[str] = set()
    for name in names:
        family = [other for other in BENCHMARKS if other.startswith(f"{name}-")]
        matching = [name] if name in BENCHMARKS else family
        if not matching:
            raise ValueError(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
        selected |= set(matching)
    chosen = [benchmark for name, benchmark in BENCHMARKS.items() if name in selected]
    if not peers:
        return chosen
    kept = [(one, {p: side for p, side in one.peers.items() if p in peers}) for one in chosen]
    return [replace(one, peers=sides) for one, sides in kept if sides]


def missing_peers(benchmarks: Sequence[Benchmark]) -> list[str]:
    """Peers of these benchmarks that cannot be imported here."""
    peers = sorted({peer for benchmark in benchmarks for peer in benchmark.peers})
    return [peer for peer in peers if importlib.util.find_spec(NEEDS[peer]) is None]


def line(found: Record) -> str:
    """`update  3.1 steps/s  padded 1.4  ratio 2.21 (2.10 .. 2.30) over 5 pairs`."""
    ours = f"{found.name}  {found.ours:,.5g} {found.unit}"
    if found.ratio is None:
        return f"{ours}  no peer, {found.pairs} runs"
    ratio = found.ratio
    return (
        f"{ours}  {found.peer} {found.theirs:,.5g}  ratio {ratio.median:.2f} "
        f"({ratio.min:.2f} .. {ratio.max:.2f}) over {found.pairs} pairs"
    )
