"""Shows a live table of a run; plain lines where nobody watches.

It consumes steps and evaluations from the trainer, redraws on each, and blocks nothing.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rolecall.monitor.colours import colours
from rolecall.monitor.comparison import measure, metric_names
from rolecall.monitor.dialogue import ending
from rolecall.monitor.reading import extremes
from rolecall.runtime import progress
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.secret_texts import scrub
from rolecall.runtime.visible_text import visible

NUM_ROWS = 12
PACE_OVER = 20  # newest steps whose mean duration the time left is estimated from
WIDTH = 34  # letters of the columns that every table has
WIDTH_OF_MEASURE = 10  # letters of a column of an agent

Record = dict[str, Any]


class _Notices(logging.Handler):
    """Prints what a person must know at once; the log has it too."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.print(
            Text(f"! {visible(scrub(record.getMessage()))}", style="yellow"), soft_wrap=True
        )


@contextmanager
def notices(console: Console) -> Iterator[None]:
    """While inside, notices of all parts are printed."""
    logger, handler = logging.getLogger("rolecall.notices"), _Notices(console)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class LiveTable:
    """A `Display` of the trainer; use it as a context manager around the run."""

    def __init__(
        self,
        agents: Sequence[str],
        *,
        total_steps: int,
        measures: Sequence[str] = ("reward", "grad_norm"),
        episodes: Callable[[int], Path] | None = None,
        console: Console | None = None,
    ) -> None:
        """`measures`: metrics of each agent, the first for narrow terminals too; `episodes`: the
        file of a step's conversations, to show how one of them ended.
        """
        self.agents, self.total_steps = list(agents), total_steps
        self.measures = tuple(measures)
        self._episodes = episodes
        self._samples: list[Text] = []
        self.console = console or PlainConsole()
        self._rows: deque[Record] = deque(maxlen=NUM_ROWS)
        self._seconds: deque[float] = deque(maxlen=PACE_OVER)
        self._lines: list[str] = []  # what takes long just now
        self._presented = ExitStack()
        self._live: Live | None = None
        if self.console.is_terminal:
            self._live = Live(self._shown(), console=self.console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
            self._presented.enter_context(progress.present_with(self._progressed))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._presented.close()
        if self._live is not None:
            self._lines = []
            self._live.update(self._shown())
            self._live.stop()

    def step(self, record: Record) -> None:
        self._rows.append(record)
        seconds = record.get("time/step_s")
        if isinstance(seconds, int | float) and math.isfinite(seconds):
            self._seconds.append(seconds)
        if self._live is not None:
            self._samples = self._sampled(record.get("step"))
            self._live.update(self._shown(), refresh=True)
        else:
            self.console.print(Text(visible(self._line(record))), soft_wrap=True)

    def evaluation(self, record: Record) -> None:
        self.console.print(Text(visible(evaluation_line(record)), style="bold"), soft_wrap=True)

    def _shown(self) -> Group:
        return Group(self._table(), *self._samples, *(Text(one, "dim") for one in self._lines))

    def _progressed(self, lines: list[str]) -> None:
        """Show what takes long just now; called from another thread."""
        if self._live is not None and lines != self._lines:
            self._lines = lines
            self._live.update(self._shown(), refresh=True)

    def _sampled(self, step: object) -> list[Text]:
        """Return the last words of the step's best and worst conversations, a line each."""
        if self._episodes is None or not isinstance(step, int):
            return []
        file = self._episodes(step)
        if not file.is_file():
            return []
        palette = colours(self.agents)
        talks = extremes(file, 1).by_name()
        return [
            ending(talk, name=name, known=palette, width=self.console.width)
            for name, named in talks.items()
            for talk in named
        ]

    def _table(self) -> Table:
        """Make the table; a narrow terminal shows only the first measure of each agent."""
        width_of_agent = WIDTH_OF_MEASURE * len(self.measures)
        wide = self.console.width >= WIDTH + width_of_agent * len(self.agents)
        measures = self.measures if wide else self.measures[:1]
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), header_style="")
        for name in ("step", "score"):
            table.add_column(Text(name), justify="right")
        palette = colours(self.agents)
        for agent in self.agents:
            for name in measures:
                head = Text(
                    f"{agent}\n{name.replace('_', ' ')}",
                    style=palette[agent].terminal,
                    overflow="fold",
                )
                table.add_column(head, justify="right")
        table.add_column(Text("tokens/s"), justify="right")
        table.add_column(Text("left"), justify="right", min_width=len("0:00:00"))
        for record in self._rows:
            cells = [f"{record.get('step', '-')}/{self.total_steps}", _cell(record, "score")]
            for agent in self.agents:
                cells += [_cell(record, f"agent/{agent}/{name}") for name in measures]
            newest = record is self._rows[-1]
            cells += [_cell(record, "pace/tokens_per_s"), self._left(record) if newest else ""]
            table.add_row(*cells, style="" if newest else "dim")
        return table

    def _line(self, record: Record) -> str:
        pairs = {"score": _cell(record, "score")}
        for agent in self.agents:
            for name in self.measures:
                pairs[f"{agent}.{name}"] = _cell(record, f"agent/{agent}/{name}")
        if record.get("rollout/failures"):
            pairs["failed_episodes"] = f"{record['rollout/failures']:g}"
        pairs |= {"tokens_per_s": _cell(record, "pace/tokens_per_s"), "left": self._left(record)}
        values = [f"{name}={value}" for name, value in pairs.items() if value != "-"]
        return " ".join([f"step={record.get('step', '-')}/{self.total_steps}", *values])

    def _left(self, record: Record) -> str:
        """Return the time left for the training steps; evaluations to come are not in it."""
        if not self._seconds or not isinstance(record.get("step"), int):
            return "-"
        seconds = fmean(self._seconds) * max(0, self.total_steps - record["step"])
        return str(timedelta(seconds=round(seconds)))


def evaluation_line(record: Record) -> str:
    """Return an evaluation in one line: `before, on test: avg@8 0.412 +- 0.031, pass@8 0.871 +-
    0.030, lenient 0.530, strict 0.412 (210 tasks)`.
    """
    when = str(record.get("when", "evaluation"))
    if when == "during":
        when = f"during, step {record.get('step', '-')}"
    if "split" in record:
        when = f"{when}, on {record['split']}"
    measures = ((name, measure(record, name)) for name in metric_names(record))
    parts = [f"{name} {m}" for name, m in measures if m is not None]
    parts += [f"{form} {share:.3f}" for form, share in (record.get("answer") or {}).items()]
    failures = [f"{kind} {count}" for kind, count in (record.get("failures") or {}).items()]
    ending = f"; failures: {', '.join(failures)}" if failures else ""
    if (coverage := record.get("coverage", 1.0)) < 1.0:
        ending = f"; {100 * coverage:.0f} % of the attempts could be scored{ending}"
    return f"{when}: {', '.join(parts) or 'no score'} ({record.get('num_tasks', 0)} tasks){ending}"


def _cell(record: Record, key: str) -> str:
    """Three decimals; whole above a hundred."""
    value = record.get(key)
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}"
