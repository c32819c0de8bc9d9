"""Declares the command that opens the page on which runs explain themselves: watch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.serving_commands import TokenEnv, token_in
from rolecall.runtime.interrupts import ends_at_once


def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNS]...", help="Run folders, or folders of runs; default: runs."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port.")] = 8800,
    host: Annotated[str, typer.Option(help="Address; another than loopback needs a token.")] = (
        "127.0.0.1"
    ),
    token_env: TokenEnv = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Let the page start what-ifs, blame and measurements.")
    ] = False,
    opens: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser; default: at a screen.")
    ] = None,
) -> None:
    """Follow runs on a local page: conversations, the credit of each turn, spikes, what-ifs."""
    with ends_at_once():
        from rolecall.watch.serving import Address, serve_page

    serve_page(
        runs or [Path("runs")],
        Address(host, port, token_in(token_env)),
        allows_jobs=what_if,
        opens_browser=_has_screen() if opens is None else opens,
        say=lambda line: print(line, flush=True),
    )


def _has_screen() -> bool:
    """Return whether a browser could be seen: not through SSH and not in a container."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
