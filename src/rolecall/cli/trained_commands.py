"""Declares the commands that use what a run has trained: ask and export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.arguments import Run
from rolecall.core.errors import ConfigError
from rolecall.runtime.interrupts import ends_at_once

Checkpoint = Annotated[str, typer.Option(help="latest, step-N or best.")]


def ask(
    run: Run,
    question: Annotated[
        str | None, typer.Argument(help="A question; default: each line of the input.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows with a column question, prompt or problem."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of --prompts with answers: .jsonl.")
    ] = None,
    number: Annotated[
        int, typer.Option("-n", min=1, metavar="N", help="Answers to each of --prompts.")
    ] = 1,
    checkpoint: Checkpoint = "latest",
) -> None:
    """Ask a trained team: one question, the questions of a file, or as a chat."""
    with ends_at_once():
        from rolecall.runs.ask_team import ask as command

    if prompts is None and (output is not None or number > 1):
        raise ConfigError("--output and -n need the questions of a file; write --prompts FILE")
    if prompts is not None and question is not None:
        raise ConfigError("a question and --prompts contradict; leave one of them out")
    command(
        run,
        question,
        prompts=prompts,
        output=output,
        number=number,
        checkpoint_name=checkpoint,
    )


def export(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder; each policy has one.")],
    policy: Annotated[str | None, typer.Option(help="Only this policy.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add LoRA adapters to their base: whole models.")
    ] = False,
    checkpoint: Checkpoint = "latest",
) -> None:
    """Write trained policies as folders that transformers, vLLM and PEFT read."""
    with ends_at_once():
        from rolecall.runs.export_weights import export as command

    for folder in command(run, output, policy=policy, merge=merge, checkpoint_name=checkpoint):
        typer.echo(f"Wrote {folder}")
