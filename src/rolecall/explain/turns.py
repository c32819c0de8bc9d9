"""Explains the advantages of single turns: what each was compared with, and the numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rolecall.core.credit import Compared, CreditTerm, dump_credit, recompute
from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode, Turn
from rolecall.monitor.credit_sentences import Reason, describe
from rolecall.monitor.reading import best, describe_score, worst
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.numbered import iterate_numbered
from rolecall.storage.run_folder import RunFolder

EXTREMES = {"best": best, "worst": worst}


@dataclass(frozen=True, slots=True)
class Sample:
    """A turn that is compared with others of its task."""

    turn: str
    score: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a turn got its advantages."""

    turn: str
    agent: str
    text: str
    outcome: float
    rewards: dict[str, float]  # the turn's own, by name
    advantage: float | None  # mean over its tokens; None: it is not trained on
    first_and_last: tuple[float, float] | None  # advantages of its first and its last token
    tokens: int
    weight: float  # multiplier of its loss
    reasons: list[Reason]
    samples: list[Sample]  # those of the same task that it was compared with, itself among them
    credit: list[dict[str, Any]]  # the terms as they are recorded
    note: str  # what there is to say where no credit is recorded, or where it is not the advantage
    coach: str = ""  # the score of a coach that counts, and what bounded it


def explain(folder: RunFolder, name: str, *, step: int | None = None) -> list[Explanation]:
    """Explain a turn, or each turn of an episode, of a run's training steps.

    `name` is the id of a turn, such as `3:add-17:0/0.1`, or of an episode, such as `3:add-17:0`;
    `best` and `worst` are the episodes of a step that `rolecall show` prints first. `step` says in
    which step's file it is; otherwise all are searched, the newest first. Raises ConfigError where
    there is none of that name.
    """
    name, episodes = _read_attempts(folder, name, step)
    return [
        explain_turn(turn, episode, episodes)
        for episode in episodes
        for turn in episode.turns
        if name in {turn.id, episode.id}
    ]


def find_episode(folder: RunFolder, name: str, *, step: int | None = None) -> Episode:
    """Return an episode of a run's training steps, named as `explain` takes it.

    Raises ConfigError where there is none.
    """
    name, episodes = _read_attempts(folder, name, step)
    return next(e for e in episodes if name == e.id or any(name == turn.id for turn in e.turns))


def _read_attempts(folder: RunFolder, name: str, step: int | None) -> tuple[str, list[Episode]]:
    """Return the id that a name stands for, and all attempts at its task in that step."""
    files = _step_files(folder, step)
    if name in EXTREMES and files:
        name = next((talk.episode for talk in EXTREMES[name](files[0], 1)), name)
    for file in files:
        task = _find_task(file, name)
        if task is not None:
            return name, read_parquet(file, task=task)
    raise ConfigError(
        f"{folder.path} has no turn or episode {name!r} in its training steps; `rolecall show "
        f"{folder.path} --json -` prints ids of both"
    )


def explain_turn(turn: Turn, episode: Episode, episodes: list[Episode]) -> Explanation:
    """Explain one turn; `episodes` are all attempts at its task."""
    terms = turn.training.credit or ()
    tokens = 0 if turn.tokens is None else len(turn.tokens)
    ends = None
    if turn.advantages is not None and tokens:
        ends = float(turn.advantages[0]), float(turn.advantages[-1])
    return Explanation(
        turn=turn.id,
        agent=turn.agent,
        text=turn.text,
        outcome=episode.outcome(turn.agent),
        rewards=turn.all_rewards,
        advantage=None if turn.advantages is None else float(np.mean(turn.advantages)),
        first_and_last=ends,
        tokens=tokens,
        weight=turn.weight,
        reasons=[describe(term) for term in terms],
        samples=_compared_samples(terms, episodes),
        credit=dump_credit(terms),
        note=_note(turn, episode),
        coach=describe_score(asdict(coach.final)) if (coach := turn.coach.note) else "",
    )


def is_reproduced(turn: Turn) -> bool:
    """Return whether a turn's credit comes to exactly its advantages."""
    if turn.tokens is None or turn.training.credit is None:
        return turn.advantages is None
    again = recompute(turn.training.credit, turn.training, tokens=len(turn.tokens))
    if again is None or turn.advantages is None:
        return again is turn.advantages
    return bool(np.array_equal(again, turn.advantages))


def _note(turn: Turn, episode: Episode) -> str:
    if episode.error is not None:
        return f"its episode failed and is not trained on: {episode.error}"
    if turn.tokens is None or not turn.trained:
        return "it is context for others: its agent is frozen, and nobody trains it"
    if turn.candidate_error:
        return f"its world failed, so it is compared with nothing: {turn.candidate_error}"
    if turn.training.credit is None:
        if not turn.chosen:
            return "it was not played, and this algorithm trains on played turns alone"
        return "no credit is recorded; files of earlier versions have none"
    if turn.training.credit == () and not np.any(turn.advantages):
        return "nothing was there to compare it with: +0"
    if not is_reproduced(turn):
        return "its algorithm changed the advantages without `give_credit`"
    return ""


def _compared_samples(terms: tuple[CreditTerm, ...], episodes: list[Episode]) -> list[Sample]:
    first = next((term for term in terms if isinstance(term, Compared)), None)
    if first is None or "task" not in first.key:
        return []
    return [
        Sample(turn.id, term.score)
        for episode in episodes
        for turn in episode.turns
        for term in (turn.training.credit or ())[:1]
        if isinstance(term, Compared) and term.key == first.key
    ]


def _step_files(folder: RunFolder, step: int | None) -> list[Path]:
    if step is not None:
        file = folder.episode_file(step)
        if not file.is_file():
            raise ConfigError(f"{folder.path} has no episodes of step {step}")
        return [file]
    files = sorted(iterate_numbered(folder.episodes, "parquet", kind="step"), reverse=True)
    return [file for _, file in files]


def _find_task(file: Path, name: str) -> str | None:
    """Return the task of the turn or episode of that name, if the file has it."""
    from pyarrow import parquet  # a command begins without it

    where = [[("turn", "=", name)], [("episode", "=", name)]]
    rows = parquet.read_table(file, columns=["task"], filters=where)
    return None if not rows.num_rows else str(rows["task"][0])
