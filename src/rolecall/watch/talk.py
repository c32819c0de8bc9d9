"""Answers one conversation: its graph, its transcript, and why each turn got its credit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolecall.core.json_types import JsonObject, Record
from rolecall.core.tags import thinking, visible
from rolecall.core.types import Episode
from rolecall.core.types import Turn as RecordedTurn
from rolecall.runtime.turn_order import joint_steps
from rolecall.watch.clean_json import finite, list_objects, load_object
from rolecall.watch.episodes import read_attempts
from rolecall.watch.group import show_reference
from rolecall.watch.models import Attempt, CoachPass, Message, Talk, ToolCall, Turn, Why
from rolecall.watch.refusals import UnknownNameError
from rolecall.watch.runs import WatchedRun
from rolecall.watch.signs import by_episode
from rolecall.watch.tables import read_rows
from rolecall.watch.why import explain_attempts, leave_unexplained

OPTIONAL = ("metrics", "weight", "temperature", "began_s", "ended_s")  # of newer files alone
COLUMNS = (
    "step", "split", "task", "source", "question", "reference", "episode", "attempt", "answer",
    "score", "episode_rewards", "error", "turn", "agent", "policy", "path", "parents", "messages",
    "text", "finish", "valid", "trained", "chosen", "candidate", "advantage", "info",
    "turn_rewards", "world_rewards", "payments",
)  # fmt: skip
TOKENS = ("token_ids", "prompt_token_ids", "versions")
SHOWN_NOTES = {  # of `info`: shown in a place of their own
    "calls", "coach", "coach_error", "verdict", "temperature", "weight",
}  # fmt: skip
STATUSES = {"": "ok", "refused": "refused", "timeouts": "timed out"}


def answer_talk(run: WatchedRun, step: int | None, episode: str, split: str | None) -> Talk:
    """Return one episode of a training step, or with a split of an evaluation."""
    number, file = find_file(run, step, episode, split)
    task = _find_task(file, episode)
    if task is None:
        raise UnknownNameError(f"{file.name} of {run.name!r} has no episode {episode!r}")
    read = read_rows(file, COLUMNS, [("task", "=", task)])
    optional = read_rows(file, ("turn", *OPTIONAL, *TOKENS), [("episode", "=", episode)]).records
    attempts = by_episode(read.records)
    if episode not in attempts:
        raise UnknownNameError(f"{file.name} of {run.name!r} does not name its episodes")
    source = attempts[episode][0]["source"]
    rows = attempts[episode]
    episodes, missing = read_attempts(file, task, source or "")
    whys = explain_attempts(episodes)
    extras = {row["turn"]: row for row in optional}
    first, lanes, graph = rows[0], list_agents(rows), place_turns(rows)
    note = missing[0].why if missing else "no credit is recorded"
    turns = [
        _turn(
            row, extras[row["turn"]], lanes, graph, whys.get(row["turn"], leave_unexplained(note))
        )
        for row in rows
        if row["turn"] is not None
    ]
    return Talk(
        run=run.name,
        step=number,
        split=first["split"] or "",
        episode=episode,
        attempt=first["attempt"] or 0,
        task=task,
        source=source or "",
        question=first["question"] or _first_question(rows),
        reference=show_reference(first["reference"]),
        answer=first["answer"] or "",
        score=finite(first["score"]),
        rewards={name: finite(value) or 0.0 for name, value in first["episode_rewards"] or ()},
        metrics={name: finite(v) for name, v in dict(optional[0]["metrics"] or ()).items()},
        error=first["error"] or "",
        agents=lanes,
        turns=turns,
        attempts=[
            Attempt(episode=name, attempt=of[0]["attempt"] or 0, score=finite(of[0]["score"]))
            for name, of in attempts.items()
            if of[0]["source"] == source
        ],
        missing=[*read.missing, *missing],
    )


def find_file(
    run: WatchedRun, step: int | None, episode: str, split: str | None = None
) -> tuple[int, Path]:
    """Return the step and the file that hold an episode, or a turn of it."""
    if split not in (None, "", "train"):
        return _find_evaluation(run, step, str(split))
    if step is not None:
        number = run.choose_step(step)
        return number, run.episode_file(number)
    steps = run.list_steps()
    match = re.match(r"\d{1,9}(?=:)", episode)
    began = int(match[0]) if match else None
    order = [number for number in steps if began is not None and 0 <= number - began <= 1]
    order += [number for number in reversed(steps) if number not in order]
    for number in order:
        if _find_task(run.episode_file(number), episode.partition("/")[0]) is not None:
            return number, run.episode_file(number)
    raise UnknownNameError(f"run {run.name!r} has no episode {episode!r} in its training steps")


def list_agents(rows: Sequence[Record]) -> list[str]:
    """Return the agents in the order in which they first speak, which are the lanes."""
    return [*dict.fromkeys(row["agent"] or "" for row in rows if row["turn"] is not None)]


def place_turns(rows: Sequence[Record]) -> dict[str, int]:
    """Return the joint step of each turn, its column in the graph.

    A candidate that was not played stands where the turn stands that was.
    """
    turns = [_bare_turn(row) for row in rows if row["turn"] is not None]
    episode = Episode(id="", task=None, attempt=0, seed=0, turns=turns)  # type: ignore[arg-type]
    columns = {t.id: n for n, step in enumerate(joint_steps(episode)) for t in step}
    calls = {turn.call_path: columns[turn.id] for turn in turns if turn.id in columns}
    for turn in turns:
        if turn.id not in columns:
            after = [columns[name] for name in turn.parents if name in columns]
            columns[turn.id] = calls.get(turn.call_path, max(after, default=-1) + 1)
    return columns


def _bare_turn(row: Record) -> RecordedTurn:
    observation = load_object(row["info"]).get("observation")
    return RecordedTurn(
        id=row["turn"],
        task="",
        episode="",
        agent=row["agent"] or "",
        policy="",
        path=tuple(row["path"] or ()),
        parents=tuple(row["parents"] or ()),
        candidate=row["candidate"],
        chosen=row["chosen"] is not False,
        observation=observation if isinstance(observation, str) else None,
    )


def _turn(row: Record, extra: Record, lanes: list[str], graph: dict[str, int], why: Why) -> Turn:
    info = load_object(row["info"])
    text = row["text"] or ""
    versions = extra["versions"] or ()
    return Turn(
        turn=row["turn"],
        agent=row["agent"] or "",
        policy=row["policy"] or "",
        path=".".join(map(str, row["path"] or ())),
        lane=lanes.index(row["agent"] or ""),
        column=graph[row["turn"]],
        parents=list(row["parents"] or ()),
        text=visible(text) if thinking(text) else text,
        thinking=thinking(text),
        messages=[
            Message(role=m["role"] or "", content=m["content"] or "") for m in row["messages"] or ()
        ],
        finish=row["finish"] or "",
        valid=row["valid"] is not False,
        trained=bool(row["trained"]),
        chosen=row["chosen"] is not False,
        candidate=row["candidate"],
        tokens=len(extra["token_ids"] or ()),
        prompt_tokens=len(extra["prompt_token_ids"] or ()),
        temperature=_either(extra["temperature"], info.get("temperature"), 1.0),
        weight=_either(extra["weight"], info.get("weight"), 1.0),
        began_s=finite(extra["began_s"]),
        ended_s=finite(extra["ended_s"]),
        version=versions[0] if versions else None,
        verdict=str(info.get("verdict", "")),
        tools=[_call(call) for call in list_objects(info.get("calls"))],
        coach=read_coach(info),
        coach_error=str(info.get("coach_error", "")),
        why=why,
        raw=_raw(row, info),
    )


def read_coach(info: JsonObject) -> list[CoachPass]:
    """Return what a coach said of a turn, first and in hindsight."""
    first = info.get("coach")
    if not isinstance(first, dict):
        return []
    passes = [("first", first)]
    if isinstance(later := first.get("hindsight"), dict):
        passes.append(("hindsight", later))
    return [
        CoachPass(
            name=name,
            score=(finite(one.get("score")) or 0.0) * 10 / (finite(one.get("scale")) or 10),
            reasoning=_read_cap(one) + str(one.get("reasoning", "")),
            cost_usd=_read_cost(one.get("usage")),
        )
        for name, one in passes
    ]


def _read_cap(note: JsonObject) -> str:
    """Return a line that tells of a bound on the score; "" where none lowered it."""
    if (uncapped := finite(note.get("uncapped"))) is None:
        return ""
    return f"Capped from {uncapped:g} of {finite(note.get('scale')) or 10:g}: {note.get('cap')}\n"


def _read_cost(usage: Any) -> float | None:
    return finite(usage.get("cost_usd")) if isinstance(usage, dict) else None


def _call(call: JsonObject) -> ToolCall:
    arguments = call.get("arguments", "")
    return ToolCall(
        name=str(call.get("name", "")),
        arguments=arguments if isinstance(arguments, str) else _json(arguments),
        result=str(call.get("result", "")),
        status=STATUSES.get(str(call.get("problem") or ""), "error"),
        seconds=finite(call.get("seconds")),
    )


def _raw(row: Record, info: JsonObject) -> dict[str, str]:
    raw = {name: _json(value) for name, value in info.items() if name not in SHOWN_NOTES}
    for name in ("turn_rewards", "world_rewards", "payments"):
        if row[name]:
            raw[name] = _json(dict(row[name]))
    return raw


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _either(column: Any, note: Any, default: float) -> float:
    for value in (column, note):
        if (number := finite(value)) is not None:
            return number
    return default


def _first_question(rows: Sequence[Record]) -> str:
    messages = next((row["messages"] for row in rows if row["messages"]), None)
    return str(messages[-1]["content"] or "") if messages else ""


def _find_task(file: Path, episode: str) -> str | None:
    records = read_rows(file, ("task",), [("episode", "=", episode)]).records
    return (records[0]["task"] or "") if records else None


def _find_evaluation(run: WatchedRun, step: int | None, split: str) -> tuple[int, Path]:
    """Return the file of an evaluation: of `rolecall eval`, else of the training."""
    kinds = ("validation",) if split == "validation" else ("evaluation", "validation")
    files = [
        (int(file.stem.partition("-")[2]), file)
        for kind in kinds
        for folder in (run.path / "evaluated", run.path)
        for file in sorted(folder.glob(f"{kind}-*.parquet"))
        if re.fullmatch(rf"{kind}-\d+", file.stem, re.ASCII)
    ]
    matching = [pair for pair in files if step in (None, pair[0])]
    if not matching:
        at = "" if step is None else f" after step {step}"
        raise UnknownNameError(f"run {run.name!r} has no {split} episodes on disk{at}")
    return max(matching, key=lambda pair: pair[0]) if step is None else matching[0]
