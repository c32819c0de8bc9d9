"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(metavar="RECIPE|FILE", help="A recipe or a YAML file.")]
SourceOrRun = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE|RUN", help="A recipe, a YAML file or a run folder.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Override keys.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
TrainingStep = Annotated[int | None, typer.Option(help="A training step; default: newest.")]
CallTools = Annotated[bool, typer.Option("--call-tools", help="Call tools again that act outside.")]
SampledBy = Annotated[
    str | None,
    typer.Option(help="latest, best, step-N, first; default: what sampled the step."),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="[FILE]", help="JSON to FILE, or to the output.")
]
PlayedEnvironment = Annotated[
    str | None,
    typer.Option(
        "--environment", metavar="NAME", help="Let --model play this environment, without a config."
    ),
]
