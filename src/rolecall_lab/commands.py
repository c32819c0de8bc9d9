"""Declares the commands of this package, which `rolecall` finds as entry points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.arguments import Json, Overrides, Source, SourceOrRun
from rolecall.cli.output import emit, fail, people_on_stderr
from rolecall.core.errors import ConfigError
from rolecall.core.optional import needs
from rolecall.runtime.interrupts import ends_at_once


def prove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; default: all.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run the papers in the small: what must come out beside what does. Status 1 if one fails."""
    with ends_at_once():
        import torch

        from rolecall_lab.proofs.all import prove as command
        from rolecall_lab.proofs.claims import show_claims

    torch.set_num_threads(1)  # the games are so small that a second thread only waits
    try:
        with people_on_stderr(json_file):
            claims = show_claims(command(names))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    emit(claims, json_file)
    if not all(claim["ok"] for claim in claims):
        raise typer.Exit(1)


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="drmas|PAPER", help="PAPER: qmix, cory, ...")],
    overrides: Overrides = None,
    table: Annotated[
        list[int] | None,
        typer.Option(help="drmas: 1 maths, 2 search, 3 normalisations; may be repeated."),
    ] = None,
    figure: Annotated[
        list[int] | None,
        typer.Option(help="drmas: gradient norms in maths (1), in search (3); 4 two models."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="small|published", help="drmas: models and data.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="drmas: runs of each setting.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder; default: reproduced/drmas-SIZE. It goes on there.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only write the configs and check rows and memory.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="With --check: not this machine.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.1, max=1e6, help="GB of each of these GPUs.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Train what a paper trained and show ours beside its numbers; without an option all of it."""
    with ends_at_once():
        from rolecall_lab.reproduce.command import DRMAS, reproduce_claims, reproduce_drmas

    options = {"--table": table, "--figure": figure, "--size": size, "--seeds": seeds,
             "--output": output, "--gpus": gpus, "--memory": memory, "--check": check or None,
             "overrides": overrides}  # fmt: skip
    with people_on_stderr(json_file):
        if paper == DRMAS:
            if size not in (None, "small", "published"):
                raise ConfigError(f"--size {size}: write small or published")
            emit(
                reproduce_drmas(
                    overrides or [],
                    tables=table or [],
                    shown=figure or [],
                    size=size or "small",  # type: ignore[arg-type]
                    seeds=3 if seeds is None else seeds,
                    output=output,
                    only_check=check,
                    gpus=gpus,
                    memory_gb=memory,
                ),
                json_file,
            )
            return
        if unused := [name for name, value in options.items() if value is not None]:
            raise ConfigError(f"{unused[0]} is for drmas alone; {paper} has one result")
        claims = reproduce_claims(paper)
    emit(claims, json_file)
    if not all(claim["ok"] for claim in claims):
        raise typer.Exit(1)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; default: all.")
    ] = None,
    pairs: Annotated[int, typer.Option(help="Runs of each side, in turn.")] = 5,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny sizes: does it run at all?")] = False,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only beside this one; repeatable.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Kept results: status 1 where a ratio has become lower.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Folder of results, a file for each processor.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Measure speed beside the peers that are installed, in turn on the same work."""
    with ends_at_once():
        from rolecall_lab.bench import results
        from rolecall_lab.bench.regression import slower
        from rolecall_lab.bench.run import bench as command

    if smoke and keep is not None:
        raise ConfigError(
            "--keep: results of --smoke say nothing about speed; leave one of them out"
        )
    try:
        with people_on_stderr(json_file):
            report = command(names, pairs=pairs, smoke=smoke, peers=peer or [])
            if keep is not None:
                results.keep(report, keep)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    emit(report, json_file)
    worse = []
    if against is not None:
        kept = results.results_file(against)
        if kept.is_file():
            worse = slower(report, json.loads(kept.read_text()))
        else:
            typer.echo(f"nothing was kept on this processor: {kept} is not there", err=True)
    if worse:
        fail(*worse, status=1)
    if report["header"]["failed"]:
        raise typer.Exit(1)


def simulate(
    source: SourceOrRun,
    overrides: Overrides = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="N|N,N|N..N", help="8, 8,16,64, or doublings 8..1024; default: as placed."
        ),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with measured figures.")
    ] = None,
    mtbf_hours: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e12, help="Hours between two failures of one GPU."),
    ] = None,
    environment_s: Annotated[
        float | None,
        typer.Option(min=0, max=1e7, help="Seconds of tools and worlds between two turns."),
    ] = None,
    restart_s: Annotated[
        float | None,
        typer.Option(min=0, max=1e7, help="Seconds until what was lost works again."),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Of the machine of a run without GPUs."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Say how to split GPUs between engines and learners, what is waited for, and step times."""
    with ends_at_once(), needs("simpy", extra="lab"):
        from rolecall_lab.simulate.command import simulate as command

    with people_on_stderr(json_file):
        report = command(
            source,
            overrides or [],
            gpus=gpus,
            measured=measured,
            mtbf_hours=mtbf_hours,
            environment_s=environment_s,
            restart_s=restart_s,
            cores=cores,
        )
    emit(report, json_file)


def tiny_build(
    source: Source,
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("tiny-model"),
    also: Annotated[
        list[str] | None, typer.Option(metavar="RECIPE|FILE", help="Another team that it plays.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Time to fit it.")] = 8.0,
    episodes: Annotated[int, typer.Option(min=1, help="Demonstrations of a team.")] = 12_000,
    hidden: Annotated[int, typer.Option(min=8, help="Width, a multiple of 8.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Depth.")] = 4,
    vocab: Annotated[int, typer.Option(min=300, help="Most tokens beside the tags.")] = 480,
    seed: Annotated[int, typer.Option(help="Of weights and demonstrations.")] = 0,
) -> None:
    """Make a small model from the demonstrations that the workflows of recipes register."""
    with ends_at_once():
        from rolecall_lab.tiny.build import Size
        from rolecall_lab.tiny.command import build_tiny

    size = Size(vocab=vocab, hidden=hidden, layers=layers, minutes=minutes, num_episodes=episodes)
    build_tiny([source, *(also or [])], overrides or [], output=output, size=size, seed=seed)
