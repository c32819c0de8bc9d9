"""Declares the commands about this machine and what is installed: doctor and info."""

from __future__ import annotations

import typer

from rolecall.cli.arguments import Json
from rolecall.cli.output import emit, people_on_stderr
from rolecall.runtime.interrupts import ends_at_once


def doctor(json_file: Json = None) -> None:
    """Try out this machine: devices, their speed, which fast paths hold, and what is missing."""
    with ends_at_once():
        from rolecall.doctor.machine_check import doctor as command

    with people_on_stderr(json_file):
        report = command()
    emit(report, json_file)
    if not report["ok"]:
        raise typer.Exit(1)


def info(json_file: Json = None) -> None:
    """Show versions, devices, extras and the names that a config can use."""
    with ends_at_once():
        from rolecall.doctor.info import collect

    report = collect()
    if json_file is None:
        for name, value in report.items():
            listed = (
                ", ".join(f"{k} {v}" for k, v in value.items())
                if isinstance(value, dict)
                else ", ".join(value)
            )
            typer.echo(f"{name:13} {listed}")
    emit(report, json_file)
