"""Writes an episode as tokens of one joint transcript: all that was said and seen, in order.

[task]
2+2?

[solver]
4

The transcript before a joint step is a prefix of the one before the next, so one row of tokens
holds the whole episode and a critic reads one position of it for each joint step. An episode that
is longer than the critic's context takes several rows. Each begins with the task; from the second
on it then has the newest of what was said before, up to half of the context, so the oldest turns
are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from rolecall.agents.chat_template import Tokenizer, encode
from rolecall.agents.control_tokens import controls
from rolecall.core.types import Episode, Ids, Turn
from rolecall.runtime.turn_order import joint_steps

StepsOf = Callable[[Episode], list[list[Turn]]]  # the joint steps of an episode, or single turns


@dataclass(slots=True)
class Transcript:
    """Consecutive joint steps of one episode as a critic reads them."""

    ids: Ids  # [N]
    reads: Ids  # [joint steps of this row] index of the last token before each
    first: int = 0  # joint step that the row begins with
    cut: bool = False  # whether something said before was dropped

    @property
    def joint_steps(self) -> slice:
        """Return which of the episode's joint steps they are."""
        return slice(self.first, self.first + len(self.reads))


def transcripts(
    episode: Episode, tokenizer: Tokenizer, *, longest: int, steps_of: StepsOf = joint_steps
) -> list[Transcript]:
    """Return what stood before each joint step, in rows of at most `longest` tokens.

    A task of 2 tokens, `longest` 12, pieces of 4 tokens, one a stage: the first three stages read a
    row of 2, 2 + 4 and 2 + 4 + 4 tokens. The fourth begins a row of the task and the third piece.
    """
    task, pieces, ends = _pieces(episode, tokenizer, steps_of)
    task = task[-(longest // 2) :]
    room = longest - len(task)
    rows: list[Transcript] = []
    begin = 0  # the piece that the row begins with
    for number, end in enumerate(ends):
        transcript = _joined(pieces[begin:end])
        if not rows or len(transcript) > room:
            begin = (
                begin if len(transcript) <= room else _newest(pieces, begin, end, room=room // 2)
            )
            whole = _joined(pieces[begin:end])
            transcript = whole[-room:]
            dropped = begin > 0 or len(whole) > room
            rows.append(Transcript(task, np.zeros(0, np.int32), first=number, cut=dropped))
        row = rows[-1]
        row.ids = np.concatenate([task, transcript])
        row.reads = np.append(row.reads, len(row.ids) - 1).astype(np.int32)
    return rows


def _pieces(
    episode: Episode, tokenizer: Tokenizer, steps_of: StepsOf
) -> tuple[Ids, list[Ids], list[int]]:
    """Return the task, what was seen and said, and how much of that precedes each joint step."""

    control_tokens = controls(tokenizer)
    names = {"task", "world", *(turn.agent for turn in episode.turns)}

    def ids(name: str, text: str) -> Ids:
        content = without_headers(control_tokens.broken(text, framed=True), names)
        return encode(tokenizer, f"[{name}]\n{content}\n\n").astype(np.int32)

    pieces: list[Ids] = []
    ends = []
    for joint_step in steps_of(episode):
        seen = next((t.observation for t in joint_step if t.observation is not None), "")
        if seen:
            pieces.append(ids("world", seen))
        ends.append(len(pieces))
        turns = sorted(joint_step, key=lambda turn: turn.agent)
        pieces += [ids(turn.agent, turn.visible) for turn in turns]
    return ids("task", episode.task.prompt), pieces, ends


def without_headers(text: str, names: Collection[str]) -> str:
    """Break headers inside a text, so that nobody speaks in the name of another."""
    anyone = "|".join(map(re.escape, sorted(names)))
    return re.sub(rf"^(\s*\[)(?=(?:{anyone})\][^\S\n]*$)", r"\1 ", text, flags=re.MULTILINE)


def _joined(pieces: list[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, np.int32), *pieces])


def _newest(pieces: list[Ids], begin: int, end: int, *, room: int) -> int:
    """Return where the newest pieces of at most `room` tokens before `end` begin; one at least."""
    first, size = end - 1, len(pieces[end - 1])
    while first > begin and size + len(pieces[first - 1]) <= room:
        first -= 1
        size += len(pieces[first])
    return first
