"""Declares the commands that say what a config would do: check, plan and simulate."""

from __future__ import annotations

from typing import Annotated

import typer

from rolecall.cli.arguments import Json, Overrides, SourceOrRun
from rolecall.cli.output import emit, people_on_stderr
from rolecall.runtime.interrupts import ends_at_once


def check(
    source: SourceOrRun,
    overrides: Overrides = None,
    num_tasks: Annotated[
        int | None,
        typer.Option("--try", min=1, max=1000, help="Play so many tasks, and say what they teach."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Say what a config would do, with its effective values and memory; all mistakes at once."""
    with ends_at_once():
        from rolecall.runs.check import check as command

    with people_on_stderr(json_file):
        result = command(source, overrides or [], num_tasks=num_tasks)
    emit(result, json_file)


def plan(
    source: SourceOrRun,
    overrides: Overrides = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="As many GPUs, not this machine.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.1, max=1e6, help="GB of each of these GPUs.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Say what a run takes of each device's memory, whether it fits, and what would make it fit.

    The exit status is 1 where it does not fit.
    """
    with ends_at_once():
        from rolecall.runs.plan import fits
        from rolecall.runs.plan import plan as command

    with people_on_stderr(json_file):
        result = command(source, overrides or [], gpus=gpus, memory_gb=memory)
    emit(result, json_file)
    if not fits(result):
        raise typer.Exit(1)
