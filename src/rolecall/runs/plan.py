"""`rolecall plan` says what a run takes of each device's memory, and what would make it fit."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rolecall.config.load import find
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.memory.check import reserved_bytes, rooms
from rolecall.memory.estimate import estimate_memory, peaks, served_addresses
from rolecall.memory.suggestions import enough, remedies
from rolecall.models.devices import is_gpu
from rolecall.placement.devices import has_seats
from rolecall.placement.gpu_assignment import gpu_name, num_gpus
from rolecall.runs.run_paths import is_run
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity
from rolecall.setup.plan import load_plan
from rolecall.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from rolecall.memory.estimate import Peak


GB = 1e9


def plan(source: str, overrides: list[str], *, gpus: int | None, memory_gb: float | None) -> Record:
    """Print and return it; `gpus` of `memory_gb` each stand for this machine's devices.

    Raises ConfigError for a config that does not fit together.
    """
    path = Path(source)
    config = load_plan(
        RunFolder.existing(path).config if is_run(path) else find(source), overrides
    ).config
    machine = device_memory(config, gpus=gpus, memory_gb=memory_gb)
    auto = next(iter(machine))
    with activity("measuring what batches keep for their backward pass"):
        needs = estimate_memory(config, auto=auto)
    result: Record = {
        "devices": dict(machine),
        "parts": [asdict(need) for need in needs],
        "peaks": [
            asdict(peak) | {"room": machine.get(peak.device), "fits": _fits(peak, machine)}
            for peak in peaks(needs)
        ],
        "served_at": served_addresses(config),
        "unknown": sorted({n.owner for n in needs if n.num_bytes is None}),
    }
    if not fits(result):
        room = min(has - reserved_bytes(device) for device, has in machine.items())
        number = len([name for name in machine if name != "cpu"])
        with activity("measuring what would make it fit"):
            result["remedies"] = [asdict(one) for one in remedies(config, auto=auto, gpus=number)]
            together = enough(config, auto=auto, gpus=number, room=room)
        result["together"] = [asdict(one) for one in together]
    show(result)
    return result


def fits(found: Record) -> bool:
    """Return whether no device would hold more than it has."""
    return all(peak["fits"] is not False for peak in found["peaks"])


def device_memory(config: Config, *, gpus: int | None, memory_gb: float | None) -> dict[str, int]:
    """Bytes of each device: of those here, of those that were named, or of a cluster's pools.

    Raises ConfigError where the pools have more GPUs than were named.
    """
    each = int((memory_gb or 80.0) * GB)
    if gpus is None and memory_gb is None:
        here = rooms()
        first = next(iter(here))
        if not has_seats(config, auto=first):
            return here
        each = min(here.values()) if is_gpu(first) else each
    elif not has_seats(config, auto="cuda"):
        return {f"cuda:{number}": each for number in range(gpus or 1)}
    pools = num_gpus(config)
    if gpus is not None and gpus < sum(pools.values()):
        raise ConfigError(
            f"cluster: its engines and ranks need {sum(pools.values())} GPUs, and --gpus says "
            f"{gpus}; write fewer engine.replicas or learner.ranks, or policies.NAME.colocate=true"
        )
    return {gpu_name(pool, n): each for pool, size in pools.items() for n in range(size)}


def _fits(peak: Peak, machine: dict[str, int]) -> bool | None:
    """Return whether a peak fits; None for what is kept for devices that are not here."""
    if not peak.is_device:
        return None
    return peak.num_bytes + reserved_bytes(peak.device) <= machine.get(peak.device, 0)


def show(found: Record, console: Console | None = None) -> None:
    """Tables of what `plan` found."""
    console = console or PlainConsole()
    parts = Table("whose", "what", "device", "when", "GB", title="Memory", title_justify="left")
    for device, need in _alike(found["parts"]):
        size = need["num_bytes"]
        when = need["phase"] + (f", else in {need['asleep']}" if need["asleep"] else "")
        amount = "unknown" if size is None else f"{size / GB:,.3f}"
        parts.add_row(need["owner"], need["part"], device, when, amount)
    console.print(parts)
    for device, peak in _alike(found["peaks"]):
        # Nothing computes where a device only keeps what rests.
        reserved = 0 if peak["fits"] is None else reserved_bytes(device)
        most = f"{device}: at most {(peak['num_bytes'] + reserved) / GB:,.1f} GB ({peak['phase']}"
        most += f", with {reserved / GB:g} GB for libraries)" if reserved else ")"
        room = peak["room"]
        has = f" of {room / GB:,.1f} GB" if room else ""
        verdict = {True: ": fits", False: ": does not fit", None: ""}[peak["fits"]]
        console.print(most + has + verdict, highlight=False)
    for name, location in found["served_at"].items():
        console.print(f"policy {name}: its weights are {location}", highlight=False, soft_wrap=True)
    for name in found["unknown"]:
        console.print(
            f"{name}: what is unknown is not counted; its base is not on this machine, or its "
            "family cannot be measured"
        )
    if "remedies" in found:
        _show_remedies(found, console)


def _alike(rows: list[Record]) -> list[tuple[str, Record]]:
    """Rows that differ in their device alone are one: cuda:main/0-7. Several on one device stay."""
    groups: dict[tuple[str, int], list[Record]] = {}
    seen: Counter[str] = Counter()
    for row in rows:
        groups.setdefault((repr(row | {"device": ""}), seen[repr(row)]), []).append(row)
        seen[repr(row)] += 1
    return [(_span([row["device"] for row in same]), same[0]) for same in groups.values()]


def _span(devices: list[str]) -> str:
    """Consecutive ones by the first and the last."""
    spans: list[tuple[str, int, int]] = []
    for device in devices:
        name, number = re.fullmatch(r"(.*?)(\d*)", device).groups()  # type: ignore[union-attr]
        last = spans[-1] if spans else ("", 0, 0)
        if number and last[0] == name and int(number) == last[2] + 1:
            spans[-1] = (name, last[1], int(number))
        else:
            spans.append((name, int(number or -1), int(number or -1)))
    return ", ".join(
        name + ("" if begin < 0 else f"{begin}" if begin == end else f"{begin}-{end}")
        for name, begin, end in spans
    )


def _show_remedies(found: Record, console: Console) -> None:
    reserved = reserved_bytes(next(iter(found["devices"])))
    table = Table("change", "peak, GB", "cost", title="Each alone", title_justify="left")
    for remedy in found["remedies"]:
        peak = f"{(remedy['num_bytes'] + reserved) / GB:,.1f}"
        table.add_row(remedy["change"], peak, remedy["cost"])
    console.print(table)
    if found["together"]:
        changes = " ".join(
            dict.fromkeys(word for one in found["together"] for word in one["change"].split())
        )
        peak = (found["together"][-1]["num_bytes"] + reserved) / GB
        console.print(f"Together these fit, at {peak:,.1f} GB: {changes}", soft_wrap=True)
    else:
        console.print("All of these together do not fit: take a smaller base or more devices.")
