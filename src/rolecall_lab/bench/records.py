"""Makes the record of a benchmark of the runs of its two sides."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from rolecall_lab.bench import Benchmark, Measured

LARGEST_GAP = 1e-4  # of a fact that both sides must find alike
Pair = tuple[Measured, Measured | None]  # ours, theirs; without a peer there is nobody beside us


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over theirs, over the pairs; above 1 we are the faster ones."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Record:
    """One benchmark against one peer."""

    name: str
    peer: str  # transformers | vllm | trl | padded | none
    unit: str
    ours: float  # median over the pairs
    theirs: float | None
    ratio: Ratio | None
    pairs: int


def record(benchmark: Benchmark, peer: str, pairs: list[Pair]) -> Record:
    """Ours 10, 12, 11 against 5, 4, 5 -> ours 11, theirs 5, ratio 2.0, 2.2, 3.0.

    The ratio is that of neighbours in time, so what slows the machine for a while slows both.
    """
    theirs = [other.value for _, other in pairs if other is not None]
    ratios = [mine.value / other.value for mine, other in pairs if other is not None]
    return Record(
        name=benchmark.name,
        peer=peer,
        unit=benchmark.unit,
        ours=median(mine.value for mine, _ in pairs),
        theirs=median(theirs) if theirs else None,
        ratio=Ratio(min(ratios), median(ratios), max(ratios)) if ratios else None,
        pairs=len(pairs),
    )


def check_same_work(ours: Measured, theirs: Measured) -> None:
    """Check that both sides did the same work.

    Raises RuntimeError with the first fact that the sides do not share.
    """
    for name in sorted({*ours.facts, *theirs.facts}):
        mine, other = ours.facts.get(name), theirs.facts.get(name)
        if mine is None or other is None or not abs(mine - other) <= LARGEST_GAP:
            raise RuntimeError(f"not the same work: {name} is {mine} here and {other} there")
