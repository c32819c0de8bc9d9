"""Writes the `report.html` of a run with stages: a row for each, and the way to its own report."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rolecall.core.json_types import Record

TEMPLATE = "stages.html.jinja"


def write(folder: Path, stages: list[Record]) -> Path:
    """Write the page. `stages`: the summaries of those that are finished, in their order."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rows = [_row(folder, stage) for stage in stages]
    text = environment.get_template(TEMPLATE).render(name=folder.resolve().name, rows=rows)
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def _row(folder: Path, stage: Record) -> dict[str, str]:
    name = stage["name"]
    page = f"{name}/report.html"
    return {
        "name": name,
        "kind": stage["kind"],
        "page": page if (folder / page).is_file() else "",
        "did": _did(stage),
        "before": _score(stage.get("before")),
        "after": _score(stage.get("after")),
    }


def _did(stage: Record) -> str:
    if stage["kind"] == "collect":
        return f"{stage['rows']} {stage['data']} from {stage['episodes']} episodes"
    if stage["kind"] == "evaluate":
        return f"{stage['after']['num_tasks']} tasks"
    return f"{stage['steps']} steps, {stage['episodes']} episodes, {stage['wall_s']:.0f} s"


def _score(found: Record | None) -> str:
    """Return "avg@8 0.512", or "" if nothing was evaluated."""
    names = [name for name in found or {} if name.startswith("avg@") and "_" not in name]
    return f"{names[0]} {found[names[0]]:.3f}" if found and names else ""
