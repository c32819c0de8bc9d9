"""Prints claims as they are computed, and returns them as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolecall.runtime.consoles import PlainConsole
from rolecall_lab.proofs import Claim


def show_claims(claims: Iterable[Claim], *, console: Console | None = None) -> list[dict[str, Any]]:
    """Print each claim with what is expected beside what came out; returns them all."""
    console = console or PlainConsole()
    records = []
    for claim in claims:
        records.append(asdict(claim))
        style, mark = ("green", "ok") if claim.ok else ("bold red", "NOT OK")
        console.print(Text(mark, style=style), Text(claim.claim))
        sides = Table.grid(padding=(0, 2), expand=False)
        sides.add_row("   expected", Text(claim.expected))
        sides.add_row("   obtained", Text(claim.obtained))
        console.print(sides)
    failed = sum(not claim["ok"] for claim in records)
    console.print(f"{len(records) - failed} of {len(records)} claims hold")
    return records
