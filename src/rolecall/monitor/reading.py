"""Reads conversations for people from a run folder's Parquet files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rolecall.core.credit import load_credit
from rolecall.core.json_types import Record
from rolecall.core.tags import thinking, visible
from rolecall.core.types import Turn
from rolecall.monitor.credit_sentences import Reason, describe
from rolecall.storage.numbered import iterate_numbered

if TYPE_CHECKING:  # the config behind it loads torch, which a reader can do without
    from rolecall.storage.run_folder import RunFolder

Condition = tuple[str, str, Any]  # column, "=" or "in", value
OF_TALK = ("source", "task", "episode", "attempt", "score", "episode_rewards", "error")
# Where episodes of held-out tasks lie, those first that count most after the same step.
HELD_OUT = (("evaluated", "evaluation"), ("", "evaluation"), ("", "validation"))
RANKED = (*OF_TALK, "advantage")
SHOWN = (
    *RANKED,
    *("step", "question", "reference", "answer", "turn", "agent", "policy", "messages", "text"),
    *("finish", "valid", "trained", "chosen", "turn_rewards", "info"),
    *("world_rewards", "payments", "inner_reward", "estimate", "credit"),
)


@dataclass(frozen=True, slots=True)
class TalkTurn:
    """One turn of a conversation, without its tokens."""

    id: str
    agent: str
    policy: str
    text: str
    messages: tuple[tuple[str, str], ...]  # (role, content) that the agent was shown
    finish: str  # stop | length
    valid: bool
    trained: bool
    chosen: bool
    advantage: float | None  # mean over its tokens; None where no credit was given
    rewards: dict[str, float]  # the turn's own
    coach: str = ""  # what a coach said of it, or why it has no score
    unscored: bool = False  # left out of training, because the coach gave no score
    why: tuple[Reason, ...] = ()  # each term of its credit; files of version 0.1 have none

    @property
    def thinking(self) -> str:
        """Empty for a model that does not think."""
        return thinking(self.text)

    @property
    def spoken(self) -> str:
        return visible(self.text)


@dataclass(frozen=True, slots=True)
class Talk:
    """One episode, as a person reads it."""

    step: int
    task: str
    source: str
    question: str
    reference: str
    answer: str
    episode: str
    attempt: int
    score: float | None
    rewards: dict[str, float]  # agent | "team" -> outcome
    error: str | None
    turns: tuple[TalkTurn, ...]


def newest_step(folder: RunFolder) -> Path | None:
    return _newest(folder.episodes, "step")


def newest_evaluation(folder: RunFolder) -> Path | None:
    return _newest(folder.path, "evaluation")


def held_out(folder: RunFolder, *, step: int | None = None) -> Path | None:
    """Episodes of held-out tasks after `step`: those of `rolecall eval`, else of the training, of
    test tasks and else of validation tasks.

    Without a step, those that were written last.
    """
    files = [
        (number, file)
        for subfolder, split in HELD_OUT
        for number, file in iterate_numbered(folder.path / subfolder, "parquet", kind=split)
    ]
    if step is not None:
        return next((file for number, file in files if number == step), None)
    if not files:
        return None
    return max(files, key=lambda pair: (pair[1].stat().st_mtime_ns, pair[0]))[1]


def _newest(folder: Path, kind: str) -> Path | None:
    return max(iterate_numbered(folder, "parquet", kind=kind), default=(0, None))[1]


def best(file: Path, number: int, *, one_per_task: bool = True) -> list[Talk]:
    """Return the best talks by score, then mean advantage, both falling; equal ones by id, so the
    choice is always the same. Episodes that failed with an error are in neither list: they have
    earned nothing.
    """
    return _chosen(file, number, sign=-1.0, one_per_task=one_per_task)


def worst(file: Path, number: int, *, one_per_task: bool = True) -> list[Talk]:
    """Return the worst talks, in the order of `best` but rising."""
    return _chosen(file, number, sign=1.0, one_per_task=one_per_task)


@dataclass(frozen=True, slots=True)
class Extremes:
    """The best and the worst conversations of a file; none is in both."""

    best: list[Talk]
    worst: list[Talk]
    alike: list[Talk]  # some, where all are worth the same and there is no best

    def by_name(self) -> dict[str, list[Talk]]:
        """Return the lists that hold something, by what they are called."""
        named = {"best": self.best, "worst": self.worst, "alike": self.alike}
        return {name: talks for name, talks in named.items() if talks}


def extremes(file: Path, number: int) -> Extremes:
    """Return up to `number` of the best and of the worst conversations of a file.

    One that is among both, because there are few, stays where it stands nearer to the top.
    """
    good, bad = best(file, number), worst(file, number)
    worths = {order[:2] for order in _order(file, sign=1.0)}
    if len(worths) == 1:
        return Extremes([], [], good)
    ranks = {(talk.source, talk.episode): rank for rank, talk in enumerate(good)}
    common = {
        key: rank < ranks[key]
        for rank, talk in enumerate(bad)
        if (key := (talk.source, talk.episode)) in ranks
    }
    return Extremes(
        [talk for talk in good if not common.get((talk.source, talk.episode), False)],
        [talk for talk in bad if common.get((talk.source, talk.episode), True)],
        [],
    )


def attempts(file: Path, task: str, *, source: str | None = None) -> list[Talk]:
    """Return every attempt at one task; `source` is needed if several have a task of that id."""
    where = [("task", "=", task)]
    if source is not None:
        where.append(("source", "=", source))
    return sorted(_load(file, where), key=lambda talk: (talk.source, talk.attempt, talk.episode))


def _order(file: Path, *, sign: float) -> list[tuple[float, float, tuple[str, str], str]]:
    """Return score, advantage, (source, episode) and task of each episode without an error."""
    rows = _rows(file, RANKED)
    order: list[tuple[float, float, tuple[str, str], str]] = []
    for key, turns in _by_episode(rows).items():
        first = turns[0]
        if first["error"] is None:
            advantages = [row["advantage"] for row in turns if row["advantage"] is not None]
            advantage = fmean(advantages) if advantages else 0.0
            order.append((sign * _worth(first), sign * advantage, key, first["task"]))
    return sorted(order)


def _chosen(file: Path, number: int, *, sign: float, one_per_task: bool) -> list[Talk]:
    picked: dict[tuple[str, str], tuple[str, str]] = {}  # (source, task or episode) -> episode
    for _, _, (source, episode), task in _order(file, sign=sign):
        picked.setdefault((source, task if one_per_task else episode), (source, episode))
    keys = list(picked.values())[:number]
    episodes = [episode for _, episode in keys]
    if not episodes:
        return []
    loaded = _load(file, [("episode", "in", episodes)])
    talks = {(talk.source, talk.episode): talk for talk in loaded}
    return [talks[key] for key in keys]


def _worth(row: Record) -> float:
    """Return the world's score; where a world gives none to the team, the mean outcome."""
    if row["score"] is not None:
        return row["score"]
    rewards = [value for _, value in row["episode_rewards"] or ()]
    return fmean(rewards) if rewards else 0.0


def _load(file: Path, where: list[Condition]) -> list[Talk]:
    return [_talk(turns) for turns in _by_episode(_rows(file, SHOWN, where)).values()]


def _rows(
    file: Path, columns: tuple[str, ...], where: list[Condition] | None = None
) -> list[Record]:
    from pyarrow import parquet  # a command begins without it

    there = set(parquet.read_schema(file).names)  # files of earlier versions have fewer
    rows: list[Record] = parquet.read_table(
        file, columns=[name for name in columns if name in there], filters=where
    ).to_pylist()
    return rows


def _by_episode(rows: list[Record]) -> dict[tuple[str, str], list[Record]]:
    episodes: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        episodes.setdefault((row["source"], row["episode"]), []).append(row)
    return episodes


def _talk(rows: list[Record]) -> Talk:
    first = rows[0]
    return Talk(
        step=first["step"],
        question=first["question"] or _first_message(rows),
        reference="" if first["reference"] == str(None) else first["reference"],
        answer=first["answer"] or "",
        rewards=dict(first["episode_rewards"] or ()),
        turns=tuple(_turn(row) for row in rows if row["turn"] is not None),
        **{name: first[name] for name in OF_TALK if name != "episode_rewards"},
    )


def _first_message(rows: list[Record]) -> str:
    """Return the newest message that the first turn answers, for a task that a server poses."""
    messages = next((row["messages"] for row in rows if row["messages"]), None)
    return str(messages[-1]["content"]) if messages else ""


def _turn(row: Record) -> TalkTurn:
    info = json.loads(row["info"] or "{}")
    return TalkTurn(
        id=row["turn"],
        messages=tuple((m["role"], m["content"]) for m in row["messages"] or ()),
        rewards=_rewards(row),
        **{
            name: row[name]
            for name in ("agent", "policy", "text", "finish", "valid", "trained", "chosen")
        },
        advantage=row["advantage"],
        coach=_coach(info),
        unscored="coach_error" in info and not row["trained"],
        why=tuple(map(describe, load_credit(json.loads(row.get("credit") or "[]")))),
    )


def _rewards(row: Record) -> dict[str, float]:
    """Return all rewards of a turn by name, as `Turn.all_rewards` does."""
    turn = Turn("", "", "", "", "", (), rewards=dict(row["turn_rewards"] or ()))
    turn.world_rewards = dict(row.get("world_rewards") or ())
    turn.payments = dict(row.get("payments") or ())
    turn.training.inner_reward, turn.training.estimate = (
        row.get("inner_reward"),
        row.get("estimate"),
    )
    return turn.all_rewards


def describe_score(note: Record) -> str:
    """Return the score of a coach's note: "4 of 10 (capped from 8: score 0.2 is below 0.5)"."""
    text = f"{note['score']:g} of {note.get('scale', 10):g}"
    if note.get("uncapped") is None:
        return text
    return f"{text} (capped from {note['uncapped']:g}: {note['cap']})"


def _coach(info: Record) -> str:
    """Return "7 of 10: reasons", a line for each pass; "no score: why" after a failure."""
    first = info.get("coach") or {}
    passes = {"": first, "in hindsight ": first.get("hindsight")}
    lines = [
        f"{label}{describe_score(score)}: {score['reasoning']}"
        for label, score in passes.items()
        if score
    ]
    if "coach_error" in info:
        lines.append(f"no score: {info['coach_error']}")
    return "\n".join(lines)
