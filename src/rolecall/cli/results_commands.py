"""Declares the commands that show what runs have come to: show and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.arguments import CallTools, Json, Overrides, Run, SampledBy, TrainingStep
from rolecall.cli.output import emit, people_on_stderr
from rolecall.runtime.interrupts import ends_at_once


def show(
    run: Run,
    task: Annotated[str | None, typer.Option(help="Show this task's attempts.")] = None,
    step: TrainingStep = None,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Held-out tasks, as they were last evaluated.")
    ] = False,
    number: Annotated[int, typer.Option("-n", min=1, help="Best and worst to show.")] = 3,
    why: Annotated[
        str | None,
        typer.Option(metavar="TURN", help="Explain this turn, or an episode; best, worst."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Read conversations: the best and the worst, or one task's attempts side by side."""
    with ends_at_once():
        from rolecall.monitor.terminal import show as command
        from rolecall.storage.run_folder import RunFolder

    folder = RunFolder.existing(run)
    if why is not None:
        with ends_at_once():
            from rolecall.explain.terminal import show_why

        emit(show_why(folder, why, step=step, quiet=bool(json_file)), json_file)
        return
    result = command(
        folder, task=task, step=step, evaluation=evaluation, number=number, quiet=bool(json_file)
    )
    emit(result, json_file)


def audit(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN|FILE", help="A run folder, or what another trainer wrote."),
    ],
    json_file: Json = None,
) -> None:
    """Check credit: groups, rewards, advantages, masks and log-probs of a run or a dump.

    Reads dumps of verl, TRL, slime, miles, verifiers, prime-rl, and JSON lines.

    The exit status is 1 where a fault is found.
    """
    with ends_at_once():
        from rolecall.explain.audit.report import audit as command
        from rolecall.explain.audit.report import print_audit
        from rolecall.runtime.consoles import PlainConsole

    result = command(path)
    print_audit(result, PlainConsole(quiet=bool(json_file)))
    emit(result.as_record(), json_file)
    if result.findings:
        raise typer.Exit(1)


def blame(
    run: Run,
    overrides: Overrides = None,
    *,
    episode: Annotated[
        str, typer.Option(help="Id of an episode of a training step; best, worst.")
    ] = "worst",
    step: TrainingStep = None,
    draws: Annotated[int, typer.Option(min=2, max=1024, help="Replays of each turn.")] = 16,
    call_tools: CallTools = False,
    json_file: Json = None,
) -> None:
    """Find the turn that decided an episode, by replaying it from each of its turns."""
    with ends_at_once():
        from rolecall.runs.blame import blame as command

    result = command(
        run,
        episode,
        step=step,
        draws=draws,
        calls_tools=call_tools,
        overrides=overrides or [],
        quiet=bool(json_file),
    )
    emit(result, json_file)


def whatif(
    run: Run,
    overrides: Overrides = None,
    *,
    turn: Annotated[str, typer.Option(help="Id of a turn of a training step.")],
    say: Annotated[
        str | None, typer.Option(help="Text that the turn says instead; default: sample it anew.")
    ] = None,
    step: TrainingStep = None,
    draws: Annotated[int, typer.Option(min=2, max=1024, help="Replays of each arm.")] = 16,
    checkpoint: SampledBy = None,
    call_tools: CallTools = False,
    json_file: Json = None,
) -> None:
    """Say what an episode would have come to, had one turn said something else."""
    with ends_at_once():
        from rolecall.runs.whatif import whatif as command

    result = command(
        run,
        turn,
        say,
        step=step,
        draws=draws,
        weights=checkpoint,
        calls_tools=call_tools,
        overrides=overrides or [],
        quiet=bool(json_file),
    )
    emit(result, json_file)


def spikes(
    run: Run,
    overrides: Overrides = None,
    *,
    step: TrainingStep = None,
    number: Annotated[int, typer.Option("-n", min=1, max=100, help="Tokens to show.")] = 20,
    measure: Annotated[
        bool, typer.Option("--measure", help="Compute the gradient of each of these tokens.")
    ] = False,
    checkpoint: SampledBy = None,
    json_file: Json = None,
) -> None:
    """Find the agents, turns and tokens that moved the gradient of a step most."""
    with ends_at_once():
        from rolecall.runs.spikes import spikes as command

    result = command(
        run,
        step=step,
        number=number,
        measures=measure,
        weights=checkpoint,
        overrides=overrides or [],
        quiet=bool(json_file),
    )
    emit(result, json_file)


def worth(
    run: Run,
    overrides: Overrides = None,
    *,
    checkpoint: Annotated[str, typer.Option(help="latest, best or step-N.")] = "latest",
    answers: Annotated[
        int, typer.Option(min=1, max=1024, help="Most answers of one agent to a task.")
    ] = 16,
    train: Annotated[bool, typer.Option(help="Train one agent and other weights, too.")] = True,
    json_file: Json = None,
) -> None:
    """Compare a team with one agent at equal tokens, latency and price, and with its parts."""
    with ends_at_once():
        from rolecall.runs.worth.command import worth as command

    with people_on_stderr(json_file):
        result = command(
            run,
            checkpoint_name=checkpoint,
            answers=answers,
            has_training=train,
            overrides=overrides or [],
            quiet=bool(json_file),
        )
    emit(result, json_file)


def compare(
    a: Run,
    b: Annotated[Path, typer.Argument(metavar="RUN", help="Another one.")],
    png: Annotated[Path | None, typer.Option(help="File for the curves of both.")] = None,
    json_file: Json = None,
) -> None:
    """Two runs side by side: keys that differ, what either came to, the same tasks in pairs."""
    with ends_at_once():
        from rolecall.monitor.two_runs import compare_runs
        from rolecall.storage.run_folder import RunFolder

    folders = [RunFolder.existing(run) for run in (a, b)]
    with people_on_stderr(json_file):
        result = compare_runs(*folders)
    if png is not None:
        with ends_at_once():
            from rolecall.monitor.overlay import draw_both

        draw_both(folders[0], folders[1], png)
    emit(result, json_file)
