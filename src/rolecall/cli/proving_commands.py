"""Declares the commands that hold this code against papers and peers: prove, reproduce, bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.arguments import Json, Overrides
from rolecall.cli.output import emit, fail, people_on_stderr
from rolecall.config.errors import ConfigError
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

        from rolecall.proofs.all import prove as command
        from rolecall.proofs.claims import show_claims

    torch.set_num_threads(1)  # the games are so small that a second thread only waits
    try:
        with people_on_stderr(json_file):
            found = show_claims(command(names))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    emit(found, json_file)
    if not all(claim["ok"] for claim in found):
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
        from rolecall.cli.reproduce import DRMAS, reproduce_claims, reproduce_drmas

    given = {"--table": table, "--figure": figure, "--size": size, "--seeds": seeds,
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
        if unused := [name for name, value in given.items() if value is not None]:
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
        from rolecall.bench import results
        from rolecall.bench.regression import slower
        from rolecall.bench.run import bench as command

    if smoke and keep is not None:
        raise ConfigError(
            "--keep: results of --smoke say nothing about speed; leave one of them out"
        )
    try:
        with people_on_stderr(json_file):
            found = command(names, pairs=pairs, smoke=smoke, peers=peer or [])
            if keep is not None:
                results.keep(found, keep)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    emit(found, json_file)
    worse = []
    if against is not None:
        kept = results.file_of(against)
        if kept.is_file():
            worse = slower(found, json.loads(kept.read_text()))
        else:
            typer.echo(f"nothing was kept on this processor: {kept} is not there", err=True)
    if worse:
        fail(*worse, status=1)
    if found["header"]["failed"]:
        raise typer.Exit(1)
