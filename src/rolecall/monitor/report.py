"""Writes `report.html`: one page that needs nothing beside it, and runs no script.

The template escapes all text: what a model wrote can never become markup.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rolecall.monitor import curves
from rolecall.monitor.advice import find_problems
from rolecall.monitor.alarms import trained_policies
from rolecall.monitor.colours import Colour, colours
from rolecall.monitor.comparison import Record, compare, evaluations, steps
from rolecall.monitor.reading import Talk, attempts, extremes, newest_evaluation, newest_step
from rolecall.monitor.summary import best as best_checkpoint
from rolecall.monitor.summary import shares_by_policy, untrained_agents

if TYPE_CHECKING:
    from rolecall.storage.run_folder import RunFolder

TEMPLATE = "report.html.jinja"
LONGEST = 8000  # letters of one text; the middle of a longer one is left out


@dataclass(frozen=True, slots=True)
class Shown:
    """A conversation, and where it is worth comparing, all attempts at its task."""

    talk: Talk
    group: list[Talk]


@dataclass(frozen=True, slots=True)
class Chapter:
    """The best and the worst of one file."""

    title: str
    parts: dict[str, list[Shown]]  # by their headings


def write(folder: RunFolder, *, number: int = 5) -> Path:
    """Write the page with the `number` best and worst conversations, and `curves.png` beside it.

    A running run has a page too.
    """
    records = folder.read_metrics()
    config: Record = yaml.safe_load(folder.config.read_text())
    palette = colours([*config["team"], *curves.agent_names(records)])
    policies = trained_policies(config)
    pictures = curves.pictures(records, palette)
    (folder.path / "curves.png").write_bytes(pictures.wide)
    path = folder.path / "report.html"
    template = _environment(palette).get_template(TEMPLATE)
    text = template.render(
        name=folder.path.resolve().name,
        config=config,
        colours=palette,
        num_steps=max((record["step"] for record in steps(records)), default=0),
        duration=_duration(records),
        evaluations=evaluations(records),
        best=best_checkpoint(records),
        changes=compare(records),
        pictures={k: base64.b64encode(v).decode() for k, v in pictures._asdict().items()},
        untrained=untrained_agents(records, [*policies]),
        problems=find_problems(records, config, policies),
        shares=shares_by_policy(records),
        chapters=_chapters(folder, number=number),
        written=time.strftime("%Y-%m-%d %H:%M"),
    )
    path.write_text(text, encoding="utf-8")
    return path


def shorten(text: str, *, longest: int = LONGEST) -> str:
    """Cut the middle out of a text longer than `longest`, and say how much was cut."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} letters left out ...]\n{text[-half:]}"


def format_signed(value: float) -> str:
    """Format a number with its sign: 0.58386 -> "+0.584"; what would print as -0.000 is "0"."""
    return "0" if abs(value) < 0.0005 else f"{value:+.3g}"


def _environment(known: dict[str, Colour]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    places = {name: index for index, name in enumerate(known)}
    environment.filters["shorten"] = shorten
    environment.filters["signed"] = format_signed
    environment.filters["fraction"] = lambda value: "n/a" if value is None else f"{value:.3f}"
    # An agent that only an old file knows has a class that no rule of the style names.
    environment.filters["shade"] = lambda agent: f"agent-{places.get(agent, 'other')}"
    return environment


def _chapters(folder: RunFolder, *, number: int) -> list[Chapter]:
    files = (("Test tasks", newest_evaluation(folder)), ("Training", newest_step(folder)))
    return [_chapter(title, file, number=number) for title, file in files if file is not None]


def _chapter(title: str, file: Path, *, number: int) -> Chapter:
    chosen = extremes(file, number)
    compared = chosen.worst or chosen.alike
    parts = {"Worst conversations": [_beside_group(file, talk) for talk in chosen.worst]}
    parts["Best conversations"] = [Shown(talk, []) for talk in chosen.best]
    if chosen.alike:
        parts = {"All score alike": [_beside_group(file, talk) for talk in chosen.alike]}
    when = f", step {compared[0].step}" if compared else ""
    return Chapter(title + when, parts)


def _beside_group(file: Path, talk: Talk) -> Shown:
    return Shown(talk, attempts(file, talk.task, source=talk.source))


def _duration(records: list[Record]) -> str:
    """Return the time of the run where the records know it, else of its steps: "3 min 20 s"."""
    whole = max((record.get("time/run_s") or 0.0 for record in records), default=0.0)
    seconds = int(whole or sum(record.get("time/step_s") or 0.0 for record in records))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"
