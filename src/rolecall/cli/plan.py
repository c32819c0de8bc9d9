"""`rolecall plan` says what a run takes of each device's memory, and what would make it fit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rolecall.cli.run_paths import is_run
from rolecall.config.load import find
from rolecall.setup.memory import memory_of, peaks, served_at
from rolecall.setup.plan import load_plan
from rolecall.setup.remedies import enough, remedies
from rolecall.setup.room import RESERVED, rooms
from rolecall.storage.run_folder import RunFolder

GB = 1e9


def plan(
    source: str, overrides: list[str], *, gpus: int | None, memory_gb: float | None
) -> dict[str, Any]:
    """Print and return it; `gpus` of `memory_gb` each stand for this machine's devices.

    Raises ConfigError for a config that does not fit together.
    """
    path = Path(source)
    config = load_plan(
        RunFolder.existing(path).config if is_run(path) else find(source), overrides
    ).config
    if gpus is None and memory_gb is not None:
        gpus = 1
    machine = rooms() if gpus is None else _pretended(gpus, memory_gb)
    auto = next(iter(machine))
    needs = memory_of(config, auto=auto)
    found: dict[str, Any] = {
        "devices": dict(machine),
        "parts": [asdict(need) for need in needs],
        "peaks": [
            asdict(peak) | {"room": machine.get(peak.device), "fits": _fits(peak, machine)}
            for peak in peaks(needs)
        ],
        "served_at": served_at(config),
        "unknown": sorted({n.owner for n in needs if n.num_bytes is None}),
    }
    if any(peak["fits"] is False for peak in found["peaks"]):
        room = min(machine.values()) - RESERVED
        number = len([name for name in machine if name != "cpu"])
        found["remedies"] = [asdict(one) for one in remedies(config, auto=auto, gpus=number)]
        together = enough(config, auto=auto, gpus=number, room=room)
        found["together"] = [asdict(one) for one in together]
    show(found)
    return found


def _pretended(gpus: int, memory_gb: float | None) -> dict[str, int]:
    each = int((memory_gb or 80.0) * GB)
    return {f"cuda:{number}": each for number in range(gpus)}


def _fits(peak: Any, machine: dict[str, int]) -> bool | None:
    """None: what the computer keeps for devices that this machine does not have."""
    if not peak.is_device:
        return None
    return peak.num_bytes + RESERVED <= machine.get(peak.device, 0)


def show(found: dict[str, Any], console: Console | None = None) -> None:
    """Tables of what `plan` found."""
    console = console or Console()
    parts = Table("whose", "what", "device", "when", "GB", title="Memory", title_justify="left")
    for need in found["parts"]:
        size = need["num_bytes"]
        when = need["phase"] + (f", else in {need['asleep']}" if need["asleep"] else "")
        told = "unknown" if size is None else f"{size / GB:,.3f}"
        parts.add_row(need["owner"], need["part"], need["device"], when, told)
    console.print(parts)
    console.print(f"Beside it, {RESERVED / GB:g} GB of each device are left to libraries.")
    for peak in found["peaks"]:
        most = f"{peak['device']}: at most {peak['num_bytes'] / GB:,.1f} GB ({peak['phase']})"
        room = peak["room"]
        has = f" of {room / GB:,.1f} GB" if room else ""
        verdict = {True: ": fits", False: ": does not fit", None: ""}[peak["fits"]]
        console.print(most + has + verdict, highlight=False)
    for name, place in found["served_at"].items():
        console.print(f"policy {name}: its weights are {place}", highlight=False, soft_wrap=True)
    for name in found["unknown"]:
        console.print(
            f"{name}: what is unknown is not counted; its base is not on this machine, or its "
            "family cannot be measured"
        )
    if "remedies" in found:
        _show_remedies(found, console)


def _show_remedies(found: dict[str, Any], console: Console) -> None:
    table = Table("change", "peak, GB", "cost", title="Each alone", title_justify="left")
    for remedy in found["remedies"]:
        table.add_row(remedy["change"], f"{remedy['num_bytes'] / GB:,.1f}", remedy["cost"])
    console.print(table)
    if found["together"]:
        changes = " ".join(remedy["change"] for remedy in found["together"])
        peak = found["together"][-1]["num_bytes"] / GB
        console.print(f"Together these fit, at {peak:,.1f} GB: {changes}", soft_wrap=True)
    else:
        console.print("All of these together do not fit: take a smaller base or more devices.")
