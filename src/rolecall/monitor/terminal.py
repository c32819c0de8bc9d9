"""Shows a run's folder or its records in the terminal."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.monitor.alarms import find_alarms, trained_policies
from rolecall.monitor.colours import colours
from rolecall.monitor.comparison import OVER_SOURCES
from rolecall.monitor.dialogue import side_by_side, talk_panel, task_lines
from rolecall.monitor.live import LiveTable, evaluation_line, notices
from rolecall.monitor.reading import Extremes, Talk, attempts, best, extremes, held_out, newest_step
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.visible_text import visible

if TYPE_CHECKING:
    from rolecall.storage.run_folder import RunFolder

__all__ = ["LiveTable", "notices", "show", "show_conversations", "show_evaluation", "show_group"]


def show(
    folder: RunFolder,
    *,
    task: str | None = None,
    step: int | None = None,
    evaluation: bool = False,
    number: int = 3,
    quiet: bool = False,
    console: Console | None = None,
) -> list[Record]:
    """Show one task's attempts, or the `number` best and worst of a step, by default of the newest.

    `evaluation` shows those of held-out tasks. Returns them as plain data, each with
    `shown_as`: attempt, best, worst, or alike where all are worth the same; `quiet` prints
    nothing. Raises ConfigError where there is no such step or task.
    """
    console = PlainConsole(quiet=True) if quiet else console or PlainConsole()
    files = _held_out(folder, step=step) if evaluation else _files(folder, step=step)
    if task is None:
        show_alarms(folder, console=console)
        file = files[0]
        shown = show_conversations(file, number=number, console=console)
        return [
            {"shown_as": name, **asdict(talk)}
            for name, talks in shown.by_name().items()
            for talk in talks
        ]
    for file in files:
        group = show_group(file, task, console=console)
        if group:
            return [{"shown_as": "attempt", **asdict(talk)} for talk in group]
    some = ", ".join(talk.task for talk in best(files[0], 3))
    raise ConfigError(f"{folder.path} has no task {task!r} there (it has for example: {some})")


def show_alarms(folder: RunFolder, *, console: Console) -> None:
    """Print what was wrong with agents of a run."""
    config = yaml.safe_load(folder.config.read_text())
    for alarm in find_alarms(folder.read_metrics(), trained_policies(config)):
        line = f"! step {alarm.step}: {visible(alarm.text)}"
        console.print(Text(line, style="yellow"), soft_wrap=True)


def show_conversations(file: Path, *, number: int = 3, console: Console | None = None) -> Extremes:
    """Print, and return, the best and the worst conversations of one Parquet file."""
    console = console or PlainConsole()
    conversations = extremes(file, number)
    titles = {"best": "Best of {}", "worst": "Worst of {}", "alike": "Some of {}: all score alike"}
    palette = colours(
        turn.agent for talks in conversations.by_name().values() for t in talks for turn in t.turns
    )
    for name, talks in conversations.by_name().items():
        console.print(Text(f"\n{titles[name].format(file.stem)}", style="bold"))
        for talk in talks:
            console.print(talk_panel(talk, known=palette))
    return conversations


def show_group(
    file: Path, task: str, *, source: str | None = None, console: Console | None = None
) -> list[Talk]:
    """Print, and return, every attempt at one task, side by side; nothing if it has none."""
    console = console or PlainConsole()
    talks = attempts(file, task, source=source)
    if talks:
        first = talks[0]
        palette = colours(turn.agent for talk in talks for turn in talk.turns)
        console.print(Text(f"\n{visible(task)}, {file.stem}", style="bold"))
        for line in task_lines(first):
            console.print(line)
        console.print(side_by_side(talks, known=palette, width=console.width))
    return talks


def show_evaluation(record: Record, *, console: Console | None = None) -> None:
    """Print the mean over all tasks; with several sources or families also the mean of the sources'
    means and a line for each source and family.
    """
    console = console or PlainConsole()
    console.print(Text(visible(evaluation_line(record))), soft_wrap=True)
    if OVER_SOURCES in record:
        over = record[OVER_SOURCES]
        line = evaluation_line({"when": f"mean of {over['num_sources']} sources", **over})
        console.print(Text(f"  {visible(line)}"), soft_wrap=True)
    for kind in ("by_family", "by_source"):
        parts: dict[str, Record] = record.get(kind) or {}
        for name, row in sorted(parts.items()) if len(parts) > 1 else []:
            line = evaluation_line({"when": name, **row})
            console.print(Text(f"  {visible(line)}"), soft_wrap=True)
    _show_costs(record, console)


def _show_costs(record: Record, console: Console) -> None:
    """Print what the evaluation cost: a row for each agent, one for all, and the time it took."""
    cost: Record = record.get("cost") or {}
    agents: dict[str, Record] = cost.get("by_agent") or {}
    if not agents:
        return
    has_usd = any("usd" in costs for costs in (cost, *agents.values()))
    heads = ["turns", "prompt tokens", "sampled tokens", "s per turn", *["USD"] * has_usd]
    rows = []
    for name, costs in [*agents.items(), ("all agents", cost)]:
        latency = record.get(f"time/latency_s/{name}") if costs is not cost else None
        cells = [f"{costs[key]:,}" for key in ("turns", "prompt_tokens", "sampled_tokens")]
        cells.append("" if latency is None else f"{latency:.3g}")
        cells += [f"{costs['usd']:.4g}" if "usd" in costs else ""] if has_usd else []
        rows.append([name, *cells])
    columns = zip(heads, *(row[1:] for row in rows), strict=True)
    widths = [max(map(len, column)) for column in columns]
    remaining = console.width - 2 - sum(2 + width for width in widths) - 2
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    # Where a terminal is narrow, long names are cut, and numbers are not.
    table.add_column("cost", no_wrap=True, overflow="ellipsis", max_width=max(8, remaining))
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if (seconds := record.get("time/evaluation_s")) is not None:
        console.print(f"  evaluated in {seconds:.3g} s", highlight=False)


def _files(folder: RunFolder, *, step: int | None) -> list[Path]:
    """Return the step's file, or the newest files, those of training steps first."""
    if step is not None:
        file = folder.episode_file(step)
        if not file.is_file():
            raise ConfigError(f"{folder.path} has no episodes of step {step}")
        return [file]
    files = [f for f in (newest_step(folder), held_out(folder)) if f is not None]
    if not files:
        raise ConfigError(f"{folder.path} has no episodes yet")
    return files


def _held_out(folder: RunFolder, *, step: int | None) -> list[Path]:
    file = held_out(folder, step=step)
    if file is None:
        when = "" if step is None else f" after step {step}"
        raise ConfigError(
            f"{folder.path} has no evaluation{when} yet: run `rolecall eval {folder.path}`"
        )
    return [file]
