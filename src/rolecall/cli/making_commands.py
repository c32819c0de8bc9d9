"""Declares the commands that make what a run needs: import, data and fetch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.arguments import Json
from rolecall.cli.output import emit, people_on_stderr
from rolecall.core.errors import ConfigError
from rolecall.runtime.interrupts import ends_at_once


def import_config(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... [WORD]... [KEY.SUB=VALUE]...",
            help="Their files, arguments of a script behind it, overrides of their keys or ours.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="mrlm|drmas|marti|marti_v1|verl|trl", help="Whose files."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="YAML file; default: the output.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Write what has a counterpart, leave out the rest.")
    ] = False,
) -> None:
    """Make a config of one of MRLM, Dr. MAS, MARTI, verl or TRL."""
    with ends_at_once():
        from rolecall.importers.importing import import_files

    files: list[Path] = []
    arguments: dict[Path, list[str]] = {}
    for word in given:
        if "=" in word:
            continue
        if files and files[-1].suffix == ".sh" and "." not in word and not Path(word).exists():
            arguments.setdefault(files[-1], []).append(word)
        else:
            files.append(Path(word))
    overrides = [word for word in given if "=" in word]
    if not files:
        raise ConfigError("no file is given; name the YAML file or the run script to import")
    text, imported = import_files(
        files, overrides, source=source, partial=partial, arguments=arguments
    )
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    note = f"; fill in {', '.join(imported.edits)}" if imported.edits else ""
    typer.echo(f"Wrote {output}{note}", err=True)


def data(
    name: Annotated[str | None, typer.Argument(help="A data set; default: list them.")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="[SPLIT=]FILE", help="Your own files, without the hub."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder; default: data/NAME.")] = None,
    json_file: Json = None,
) -> None:
    """Prepare a public data set: JSON Lines that environments read, or an index to search."""
    with ends_at_once():
        from rolecall.data.finding import collect_files, fetch
        from rolecall.data.known import LISTED, get_data_set
        from rolecall.runs.prepare_data import Prepared, prepare
        from rolecall.runs.prepare_index import PreparedIndex, prepare_index

    if name is None:
        if source or output:
            raise ConfigError(
                "--from and --output need the name of a data set; write one of: "
                + ", ".join(d.name for d in LISTED)
            )
        for one in LISTED if json_file is None else []:
            splits = ", ".join(one.files)
            typer.echo(f"{one.name:16} {one.kind:13} {splits:12} {one.hub or one.needs}")
        emit([{"name": d.name, "kind": d.kind, "hub": d.hub, "splits": [*d.files]} for d in LISTED],
             json_file)  # fmt: skip
        return
    try:
        data_set = get_data_set(name)
        folder = output or Path("data") / data_set.name
        prepared: Prepared | PreparedIndex
        if data_set.kind == "index":
            prepared = prepare_index(data_set, source or (), folder)
        else:
            files = collect_files(data_set, source) if source else fetch(data_set)
            prepared = prepare(data_set, files, folder)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with people_on_stderr(json_file):
        typer.echo("\n".join(prepared.lines()))
    emit(asdict(prepared), json_file)


def fetch(
    name: Annotated[
        str | None, typer.Argument(help="The short name of a model; default: list them.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Download a small language model into the cache, for `base: NAME`."""
    with ends_at_once():
        from rolecall.models.fetching import fetch_model
        from rolecall.models.known_models import KNOWN_MODELS, find_fetched

    if name is not None:
        try:
            folder = fetch_model(name)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        with people_on_stderr(json_file):
            typer.echo(f"{name} is in {folder}\nUse it with: policies.NAME.base={name}")
        emit({"name": name, "folder": str(folder)}, json_file)
        return
    listed = []
    for model in KNOWN_MODELS.values():
        fetched = find_fetched(model)
        listed.append(
            {
                "name": model.name,
                "hub": model.hub,
                "licence": model.licence,
                "parameters": model.parameters,
                "context": model.context,
                "folder": None if fetched is None else str(fetched),
            }
        )
        if json_file is None:
            size = f"{model.parameters / 1e6:,.0f} M"
            here = "fetched" if fetched else ""
            typer.echo(
                f"{model.name:13} {size:>7} {model.context:>7,} tokens  {model.licence:19} {here}"
            )
    emit(listed, json_file)
