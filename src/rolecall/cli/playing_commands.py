"""Declares the commands in which teams play: train, eval, crossplay and collect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.arguments import Json, Overrides, PlayedEnvironment, SourceOrRun
from rolecall.cli.output import emit, people_on_stderr
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Options
from rolecall.runtime.interrupts import ends_at_once


def train(
    source: SourceOrRun,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Only continue a run.")] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Continue a run with other values of any key.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="step-N|best", help="Begin a new run from this checkpoint of the run: a fork."
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Train a team; a second start in the same folder continues where the first one stopped."""
    with ends_at_once():
        from rolecall.learners.ranks import child, torchrun

    if torchrun.is_server():
        torchrun.serve_trainer(child.serve)
        return
    with ends_at_once():
        from rolecall.runs.train import train as command

    with people_on_stderr(json_file):
        result = command(
            source,
            overrides or [],
            output=output,
            resume=resume,
            allow_changes=allow_changes,
            checkpoint=checkpoint,
        )
    torchrun.dismiss()
    emit(result, json_file)


def evaluate(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|FILE|MODEL]",
            help="A run folder, a config, or with --recipe a model; none with --environment.",
        ),
    ] = None,
    overrides: Overrides = None,
    checkpoint: Annotated[
        str,
        typer.Option(help="latest, step-N, or best: of validation tasks, else of these."),
    ] = "latest",
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE|FILE", help="The team that MODEL plays, as every policy."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="[POLICY=]MODEL", help="The model of all policies, or of one."),
    ] = None,
    environment: PlayedEnvironment = None,
    number: Annotated[
        int | None, typer.Option("-n", min=1, metavar="N", help="Held-out tasks to play.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Rows with `response` or `responses`, which --environment grades."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of what was said and scored; it goes on there.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Score a team on its held-out tasks: avg@n and pass@k."""
    with ends_at_once():
        from rolecall.runs.evaluate import evaluate as command

    source, overrides = _without_source(source, overrides, environment)
    if answers is not None:
        with ends_at_once():
            from rolecall.runs.grade_answers import grade_answers
        unread = {"a run or config": source, "--model": model, "--recipe": recipe,
                  "-n": number, "--output": output}  # fmt: skip
        for name, value in unread.items():
            if value:
                raise ConfigError(f"--answers: {name} has no effect, as nobody plays; remove it")
        with people_on_stderr(json_file):
            result = grade_answers(answers, environment, overrides)
        emit(result, json_file)
        return
    with people_on_stderr(json_file):
        result = command(
            source,
            overrides,
            checkpoint_name=checkpoint,
            recipe=recipe,
            models=model,
            environment=environment,
            number=number,
            output=output,
        )
    emit(result, json_file)


def crossplay(
    given: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN... [KEY.SUB=VALUE]...", help="Run folders, overrides."),
    ],
    checkpoint: Annotated[
        str, typer.Option(help="Of every run: latest, best or step-N.")
    ] = "latest",
    output: Annotated[
        Path | None, typer.Option(help="JSON file; default: evaluated/crossplay.json of the first.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Let agents of one run play with, or against, those of others: a matrix of mean scores."""
    with ends_at_once():
        from rolecall.runs.crossplay import crossplay as command

    runs = [argument for argument in given if "=" not in argument]
    overrides = [argument for argument in given if "=" in argument]
    with people_on_stderr(json_file):
        result = command(runs, overrides, checkpoint_name=checkpoint, output=output)
    emit(result, json_file)


def _without_source(
    source: str | None, overrides: list[str] | None, environment: str | None
) -> tuple[str | None, list[str]]:
    """Return what is played and the overrides: with --environment all arguments are overrides.

    Raises ConfigError where both a config and an environment are named.
    """
    others = overrides or []
    if environment is None or source is None:
        return source, others
    if "=" not in source:
        raise ConfigError(
            f"{source} has an environment already; leave --environment out, or write "
            f"environment={environment}"
        )
    return None, [source, *others]


def collect(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|FILE|RUN]",
            help="A recipe, a YAML file or a run folder; none with --environment.",
        ),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File: .jsonl or .parquet.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="The model that plays it.")
    ] = None,
    environment: PlayedEnvironment = None,
    number: Annotated[
        int | None, typer.Option("-n", min=1, metavar="N", help="Episodes to play, one a task.")
    ] = None,
    least: Annotated[
        float | None, typer.Option(help="Least reward of a turn that is kept.")
    ] = None,
    step_least: Annotated[
        float | None,
        typer.Option(help="Least own reward of a turn: a wrong step is shown and not imitated."),
    ] = None,
    best_of: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the N best attempts at each task.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Preferences: better and worse answers to one prompt.")
    ] = False,
    agent: Annotated[
        list[str] | None, typer.Option(help="Only turns of this agent; may be repeated.")
    ] = None,
    imitate: Annotated[
        str,
        typer.Option(
            metavar="agent|world|both", help="What agents said, or what the world showed next."
        ),
    ] = "agent",
    weigh: Annotated[
        str, typer.Option(metavar="alike|reward", help="Weight of a row for sft.")
    ] = "alike",
    world_weight: Annotated[
        float, typer.Option(help="Weight of a row of what the world showed next.")
    ] = 1.0,
    checkpoint: Annotated[str, typer.Option(help="Of a run: latest, step-N or best.")] = "latest",
    played: Annotated[
        str | None,
        typer.Option(
            metavar="train|test|validation", help="Play nothing: take what the run has played."
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Play episodes and write a data set for `rollout.data`: demonstrations or preferences."""
    with ends_at_once():
        from rolecall.config.data_set_export import collect_config
        from rolecall.runs.export_data_set import collect as command

    source, overrides = _without_source(source, overrides, environment)
    if output is None:
        raise ConfigError("--output is missing; name the file: --output rows.jsonl")
    if source is None and environment is None:
        raise ConfigError("name a recipe, a run, or --model MODEL with --environment NAME")
    if source is not None and model:
        raise ConfigError(f"--model {model[0]}: {source} has its models; write policies.NAME.base")
    choices: Options = {"least": least, "step_least": step_least, "best_of": best_of}
    choices |= {"pairs": pairs, "agents": agent or [], "imitate": imitate}
    choices |= {"weigh": weigh, "world_weight": world_weight}
    with people_on_stderr(json_file):
        result = command(
            source,
            overrides,
            output=output,
            options=collect_config(choices),
            checkpoint_name=checkpoint,
            played=played,
            models=model,
            environment=environment,
            number=number,
        )
    emit(result, json_file)
