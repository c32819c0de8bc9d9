"""Asks a trained team: one question, the questions of a file, or whatever a person types."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Episode
from rolecall.data.files import Row, read_rows
from rolecall.runs.trained_team import Team, TrainedTeam
from rolecall.runtime.progress import Activity, activity
from rolecall.runtime.visible_text import visible

QUESTIONS = ("question", "prompt", "problem")
LEAVE = ("exit", "quit")


def ask(
    run: Path,
    question: str | None,
    *,
    prompts: Path | None = None,
    output: Path | None = None,
    number: int = 1,
    checkpoint_name: str = "latest",
) -> None:
    """Ask the team of a run, and print or write its answers.

    question: one question; without it and without `prompts` the lines of the standard input.
    prompts: file of rows with a column question, prompt or problem (JSON Lines, JSON, CSV or
        parquet); each row is written to `output` with the column `answers` of `number` answers.

    Raises ConfigError for a missing run or checkpoint, and for a file without questions.
    """
    if prompts is not None and output is None:
        raise ConfigError("--output is missing; name the file of answers: --output answers.jsonl")
    rows = None if prompts is None else _read_prompts(prompts)
    with Team.load(run, step=checkpoint_name) as team:
        if rows is not None:
            assert output is not None, "checked above"
            _answer_rows(team, rows, output, number=number)
        elif question is not None:
            _print_conversation(team.ask_now(question))
        else:
            for line in _lines():
                _print_conversation(team.ask_now(line))


def _read_prompts(path: Path) -> list[Row]:
    """Return the rows of a file. Raises ConfigError where one has no question."""
    try:
        rows = [row for _, row in read_rows(path)]
    except OSError as error:
        raise ConfigError(f"--prompts {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--prompts {error}") from error
    for number, row in enumerate(rows, 1):
        if not _question(row):
            raise ConfigError(
                f"--prompts {path}: row {number} has no question; name its column "
                f"{', '.join(QUESTIONS[:-1])} or {QUESTIONS[-1]} (it has {', '.join(row)})"
            )
    return rows


def _question(row: Row) -> str:
    return next((str(row[name]) for name in QUESTIONS if row.get(name)), "")


def _answer_rows(team: TrainedTeam, rows: list[Row], output: Path, *, number: int) -> None:
    """Ask all questions at once, as many as the run plays, and write the rows in their order."""
    places = asyncio.Semaphore(team.context.concurrency)

    async def answer(row: Row, shown: Activity) -> JsonObject:
        async with places:
            episodes = await asyncio.gather(*(team.ask(_question(row)) for _ in range(number)))
        shown.done += 1
        return {**row, "answers": [episode.answer for episode in episodes]}

    async def answer_all() -> list[JsonObject]:
        with activity("answering", total=len(rows), unit="rows") as shown:
            return await asyncio.gather(*(answer(row, shown) for row in rows))

    written = asyncio.run(answer_all())
    output.write_text(
        "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in written),
        encoding="utf-8",
    )
    print(f"Wrote {output}: {len(written)} rows with {number} answers each")


def _lines() -> Iterator[str]:
    """Yield what a person types, until the end of the input, `exit` or `quit`."""
    is_person = sys.stdin.isatty()
    if is_person:
        print("Ask the team. `exit` or Ctrl-D ends.")
    lines: Iterable[str] = iter(lambda: _read_line(is_person), None)
    for line in lines:
        if line.strip() in LEAVE:
            return
        if line.strip():
            yield line.strip()


def _read_line(is_person: bool) -> str | None:
    """Return the next line; None at the end of the input."""
    if is_person:
        print("> ", end="", flush=True)
    return sys.stdin.readline() or None


def _print_conversation(episode: Episode) -> None:
    """Print what each agent said, and the team's answer."""
    for turn in episode.turns:
        if turn.chosen:
            print(f"[{turn.agent}] {visible(turn.text).strip()}")
    print(f"answer: {visible(str(episode.answer)).strip()}", flush=True)
