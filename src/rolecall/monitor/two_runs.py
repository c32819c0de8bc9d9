"""Compares two run folders: what differs in their configs, and what each of them scored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import hypot

import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolecall.config.load import load
from rolecall.core.json_types import Record
from rolecall.monitor.comparison import Change, Measure, compare
from rolecall.monitor.paired_tasks import COLUMNS, TaskKey, average_attempts, measure_differences
from rolecall.monitor.reading import newest_evaluation
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.visible_text import visible
from rolecall.storage.config_changes import Changes, changes_between
from rolecall.storage.run_folder import RunFolder

MOST_SHOWN = 3  # tasks of each kind


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task in both runs: the mean score of its attempts."""

    task: str
    question: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Paired:
    """b less a over the tasks that both have; pairs leave out how hard a task is."""

    num_tasks: int
    difference: Measure  # mean over tasks, with the margin of a paired comparison
    better: int  # tasks that b scores higher on
    worse: int
    most_better: list[TaskPair]
    most_worse: list[TaskPair]


def pair_tasks(a: RunFolder, b: RunFolder) -> Paired | None:
    """Compare the newest evaluations of two runs task by task; None where they share no task.

    [1, 0, .5] against [1, .5, 1]: +.333 +- .327, two better, none worse.
    """
    one, other = _scores(a), _scores(b)
    pairs = [
        TaskPair(f"{key.source} {key.task}".strip(), key.question, one[key], other[key])
        for key in sorted(one.keys() & other.keys())
    ]
    if not pairs:
        return None
    gains = [pair.b - pair.a for pair in pairs]
    ranked = sorted(pairs, key=lambda pair: pair.a - pair.b)
    return Paired(
        num_tasks=len(pairs),
        difference=measure_differences(gains),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        most_better=[pair for pair in ranked[:MOST_SHOWN] if pair.b > pair.a],
        most_worse=[pair for pair in ranked[::-1][:MOST_SHOWN] if pair.b < pair.a],
    )


def _scores(run: RunFolder) -> dict[TaskKey, float]:
    """Return the mean score of each task in the run's newest evaluation; {} without one."""
    file = newest_evaluation(run)
    if file is None:
        return {}
    return average_attempts(pq.read_table(file, columns=list(COLUMNS)).to_pylist())


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one family or data source in both runs."""

    metric: str  # e.g. avg@8
    part: str  # "" for all together
    a: Change | None  # None: this run was not evaluated so
    b: Change | None

    @property
    def difference(self) -> Measure | None:
        """The final mean of b less that of a."""
        if self.a is None or self.b is None or self.a.after is None or self.b.after is None:
            return None
        one, other = self.a.after, self.b.after
        margin = None
        if one.margin is not None and other.margin is not None:
            margin = hypot(one.margin, other.margin)
        return Measure(other.mean - one.mean, margin)


def compare_runs(a: RunFolder, b: RunFolder, *, console: Console | None = None) -> Record:
    """Print, and return, {"runs": .., "config": {key: [of a, of b]}, "evaluations": [..],
    "same_tasks": {..} or None}.

    Raises ConfigError where a config cannot be read.
    """
    console = console or PlainConsole()
    keys = changes_between(*(load(run.config) for run in (a, b)))
    rows = _rows(compare(a.read_metrics()), compare(b.read_metrics()))
    names = {"A": str(a.path), "B": str(b.path)}
    for name, path in names.items():
        console.print(Text(f"{name}: {visible(path)}"), soft_wrap=True)
    console.print(_config_table(keys) if keys else Text("\nTheir configs are equal."))
    console.print(_evaluation_table(rows) if rows else Text("\nNeither was evaluated."))
    same = pair_tasks(a, b)
    if same is not None:
        console.print(_paired_table(same))
    return {
        "runs": names,
        "config": keys,
        "evaluations": [_plain(row) for row in rows],
        "same_tasks": None if same is None else asdict(same),
    }


def _rows(a: list[Change], b: list[Change]) -> list[Row]:
    """Return the rows of a in their order, then those that only b has."""
    found_a, found_b = ({(c.metric, c.part): c for c in changes} for changes in (a, b))
    return [
        Row(*key, found_a.get(key), found_b.get(key)) for key in dict.fromkeys([*found_a, *found_b])
    ]


def _config_table(keys: Changes) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for name in ("key", "A", "B"):
        table.add_column(name, overflow="fold")
    for key, values in keys.items():
        table.add_row(Text(visible(key)), *(Text(visible(str(value))) for value in values))
    return table


def _evaluation_table(rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for name in ("metric", "run", "before", "after", "gain"):
        table.add_column(name)
    for row in rows:
        head = Text(visible(f"{row.metric} {row.part}".rstrip()))
        for name, change in (("A", row.a), ("B", row.b)):
            measures = (None,) * 3 if change is None else (change.before, change.after, change.gain)
            table.add_row(head, name, *("-" if m is None else str(m) for m in measures))
            head = Text("")
        if row.difference is not None:
            table.add_row("", "B - A", "", str(row.difference), "", style="bold", end_section=True)
    return table


def _paired_table(same: Paired) -> Table:
    title = (
        f"The same {same.num_tasks} tasks in pairs: B - A = {same.difference}; "
        f"{same.better} better, {same.worse} worse"
    )
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", title=title, title_justify="left")
    for name in ("task", "question", "A", "B"):
        table.add_column(name, overflow="fold")
    for pair in (*same.most_better, *reversed(same.most_worse)):
        question = " ".join(pair.question.split())[:60]
        table.add_row(visible(pair.task), visible(question), f"{pair.a:.2f}", f"{pair.b:.2f}")
    return table


def _plain(row: Row) -> Record:
    def of(change: Change | None) -> Record | None:
        if change is None:
            return None
        measures = {"before": change.before, "after": change.after, "gain": change.gain}
        return {name: _numbers(measure) for name, measure in measures.items()}

    return {
        "metric": row.metric,
        "part": row.part,
        "a": of(row.a),
        "b": of(row.b),
        "difference": _numbers(row.difference),
    }


def _numbers(measure: Measure | None) -> dict[str, float | None] | None:
    return None if measure is None else asdict(measure)
