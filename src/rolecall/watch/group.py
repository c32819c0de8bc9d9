"""Answers the board of a group: attempts are columns, joint steps rows, with where they part."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.core.credit import Compared
from rolecall.core.json_types import Record
from rolecall.core.types import Episode
from rolecall.monitor.credit_sentences import describe, fmt, fmt_signed
from rolecall.watch.clean_json import finite
from rolecall.watch.episodes import read_attempts
from rolecall.watch.models import Arithmetic, BoardColumn, BoardRow, Cell, Group
from rolecall.watch.refusals import UnknownNameError
from rolecall.watch.runs import WatchedRun
from rolecall.watch.signs import by_episode, judge_group
from rolecall.watch.tables import read_rows

COLUMNS = (
    "task", "source", "question", "reference", "episode", "attempt", "score", "episode_rewards",
    "error", "turn", "agent", "path", "text", "finish", "valid", "trained", "chosen", "advantage",
    "credit",
)  # fmt: skip
TEXT_CHARS = 400  # of a turn on the board


def answer_group(run: WatchedRun, step: int | None, task: str, source: str | None) -> Group:
    """Return the board of the attempts at one task in a step."""
    number = run.choose_step(step)
    file = run.episode_file(number)
    rows = read_rows(file, COLUMNS, [("task", "=", task)]).records
    if source is not None:
        rows = [row for row in rows if (row["source"] or "") == source]
    if not rows:
        raise UnknownNameError(f"step {number} of {run.name!r} has no attempts at task {task!r}")
    episodes = by_episode(rows)
    sign, why = judge_group(rows)
    firsts = [turns[0] for turns in episodes.values()]
    attempts, _ = read_attempts(file, task, firsts[0]["source"] or "")
    return Group(
        run=run.name,
        step=number,
        task=task,
        source=firsts[0]["source"] or "",
        question=firsts[0]["question"] or "",
        reference=show_reference(firsts[0]["reference"]),
        sign=sign,
        why=why,
        columns=[_column(row) for row in firsts],
        rows=build_board(list(episodes.values())),
        arithmetic=explain_agents(attempts),
    )


def show_reference(reference: str | None) -> str:
    """Return a reference answer; "" for none."""
    return "" if reference in (None, str(None)) else str(reference)


def build_board(attempts: Sequence[Sequence[Record]]) -> list[BoardRow]:
    """Return a row for each path of a turn, with the first row in which texts differ marked."""
    by_path: dict[tuple[int, ...], dict[int, Record]] = {}
    for number, turns in enumerate(attempts):
        for row in turns:
            if row["turn"] is not None:
                by_path.setdefault(tuple(row["path"] or ()), {})[number] = row
    rows, is_parted = [], False
    for path, turns_at in sorted(by_path.items()):
        differs = not is_parted and _differs(turns_at, len(attempts))
        is_parted = is_parted or differs
        cells = [_cell(turns_at, number) for number in range(len(attempts))]
        name = ".".join(map(str, path))
        rows.append(BoardRow(path=name, cells=cells, is_parting=differs))
    return rows


def make_cell(row: Record, *, is_new: bool) -> Cell:
    """Return the cell of a turn."""
    return Cell(
        turn=row["turn"],
        agent=row["agent"] or "",
        text=_cut(row["text"] or ""),
        advantage=finite(row["advantage"]),
        valid=row["valid"] is not False,
        finish=row["finish"] or "",
        trained=bool(row["trained"]),
        chosen=row["chosen"] is not False,
        is_new=is_new,
    )


def explain_agents(attempts: Sequence[Episode]) -> list[Arithmetic]:
    """Return how the credit of each agent comes about in a group: in numbers, and by turn."""
    scores: dict[str, list[tuple[str, float]]] = {}
    sentences: dict[str, list[str]] = {}
    for episode in attempts:
        for turn in episode.turns:
            for term in turn.training.credit or ():
                lines = sentences.setdefault(turn.agent, [])
                if isinstance(term, Compared):
                    score = finite(term.score) or 0.0
                    scores.setdefault(turn.agent, []).append((turn.id, score))
                    line = _say_compared(term)
                else:
                    line = describe(term).sentence
                if line not in lines and len(lines) < 8:
                    lines.append(line)
    return [
        Arithmetic(agent=agent, sentences=lines, samples=scores.get(agent, []))
        for agent, lines in sorted(sentences.items())
    ]


def _say_compared(term: Compared) -> str:
    """Return what all samples of a comparison share: their number, mean and spread."""
    if term.mean is None:
        return "no other attempt says what to expect: +0"
    spread = "" if term.std is None else f", spread {fmt(term.std)}"
    if term.std == 0.0:
        spread += ": all are equal, so each gains +0"
    unit = {"turn": "turns", "episode_agent": "attempts", "call": "calls"}.get(
        term.sample, "candidates"
    )
    if term.baseline == "leave_one_out":
        return f"each {unit.removesuffix('s')} is measured from the mean of the others{spread}"
    if term.n == 0:
        return f"measured from {fmt(term.mean)}{spread}"
    factor = "" if term.factor == 1.0 else f", times {fmt_signed(term.factor)}"
    return f"{term.n} {unit} have mean {fmt(term.mean)}{spread}{factor}"


def _column(row: Record) -> BoardColumn:
    return BoardColumn(
        episode=row["episode"] or "",
        attempt=row["attempt"] or 0,
        score=finite(row["score"]),
        rewards={name: finite(value) or 0.0 for name, value in row["episode_rewards"] or ()},
        error=row["error"] or "",
    )


def _differs(turns_at: dict[int, Record], number: int) -> bool:
    """Return whether attempts say different things at a path, or some say nothing there."""
    texts = {row["text"] for row in turns_at.values()}
    return len(texts) > 1 or len(turns_at) < number


def _cell(turns_at: dict[int, Record], number: int) -> Cell | None:
    row = turns_at.get(number)
    if row is None:
        return None
    earlier = {turns_at[other]["text"] for other in turns_at if other < number}
    return make_cell(row, is_new=row["text"] not in earlier)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else f"{text[: TEXT_CHARS - 1]}…"
