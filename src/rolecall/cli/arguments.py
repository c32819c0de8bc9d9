"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(metavar="RECIPE|FILE", help="A recipe or a YAML file.")]
SourceOrRun = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE|RUN", help="A recipe, a YAML file or a run folder.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Override keys.")
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="[FILE]", help="JSON to FILE, or to the output.")
]
