"""Compares new ratios with those that were committed, to see whether something became slower."""

from __future__ import annotations

from typing import Any

SLACK = 0.9  # of the smallest committed ratio: processors and neighbours differ


def slower(found: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """A line for each benchmark whose best new pair is below `SLACK` of the worst committed one.

    Both are what `rolecall bench --json` writes. Ratios are to a peer on the same machine, so a
    faster or slower processor does not matter; benchmarks without a committed ratio are skipped.
    """
    before = {(r["name"], r["peer"]): r["ratio"] for r in committed["records"] if r["ratio"]}
    lines = []
    for record in found["records"]:
        was = before.get((record["name"], record["peer"]))
        if was is None or record["ratio"] is None:
            continue
        best, least = record["ratio"]["max"], SLACK * was["min"]
        if best < least:
            lines.append(
                f"{record['name']} against {record['peer']}: the best ratio of "
                f"{record['pairs']} pairs is {best:.2f}; it was {was['median']:.2f} "
                f"({was['min']:.2f} .. {was['max']:.2f})"
            )
    return lines
