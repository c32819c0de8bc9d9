"""Writes episodes as JSON lines or Parquet rows and reads them back, exact to the bit.

A float32 becomes the shortest decimal of its float64 value, which reads back as the same float32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rolecall.core.credit import dump_credit, load_credit
from rolecall.core.json_types import JsonObject, JsonValue, Record
from rolecall.core.types import (
    MOVED_TO_NOTES,
    CoachNote,
    CoachNotes,
    Episode,
    Message,
    Task,
    ToolNotes,
    TrainingNotes,
    Turn,
    Utility,
)

if TYPE_CHECKING:
    import pyarrow as pa


IDS = ("prompt", "tokens", "versions")
NOTES = (
    "observation", "calls", "files", "files_written", "verdict", "candidate_error",
    "team_values",
    "preference", "replayed", "replay_error", "seat", "coach_error", "coach_requests", "utility",
    "coach", "usage", "sampled_by", "state", "imitated",
)  # fmt: skip
ADDED = ("weight", "temperature", "began_s", "ended_s")  # columns that files of version 0.1 lack
# Columns whose numbers hardly repeat: zstd packs their bytes better apart than as a dictionary.
DIVERSE = ("logprobs", "values", "ref_logprobs", "began_s", "ended_s")
HOLDERS = {"training": TrainingNotes, "tools": ToolNotes, "coach": CoachNotes}  # fields of a turn
NOTE_PATHS = MOVED_TO_NOTES | {"coach": "coach.note"}  # name in a record -> attribute of a turn
NOTE_READERS = {name: attrgetter(NOTE_PATHS.get(name, name)) for name in NOTES}
MOST_ROWS = 4096  # of a Parquet file that are held in memory while it is written
FLOATS = (
    "logprobs", "prox_logprobs", "new_logprobs", "ref_logprobs", "values", "advantages", "returns",
    "imitated",
)  # fmt: skip


def to_json(episode: Episode) -> str:
    record = {f.name: getattr(episode, f.name) for f in fields(Episode)}
    task = episode.task
    record["task"] = {f.name: getattr(task, f.name) for f in fields(Task)}
    record["turns"] = [_turn_record(turn) for turn in episode.turns]
    return json.dumps(record, default=_plain)


def from_json(line: str) -> Episode:
    record = json.loads(line)
    record["task"] = Task(**record["task"])
    record["turns"] = [_turn(turn) for turn in record["turns"]]
    if "scores" not in record:
        _split_metrics(record)
    return Episode(**record)


def _split_metrics(record: JsonObject) -> None:
    """Give a record of version 0.1 the fields that stood among its metrics."""
    metrics = record["metrics"]
    owners = {name: name.partition("/") for name in metrics if name.partition("/")[0] == "score"}
    record["scores"] = {owner or "team": metrics.pop(n) for n, (_, _, owner) in owners.items()}
    record["judged_score"] = metrics.pop("headline", None)
    record["is_truncated"] = bool(metrics.pop("truncated", 0.0))
    record["is_mistake"] = bool(metrics.pop("mistake", 0.0))


def _turn_record(turn: Turn) -> JsonObject:
    record = _flatten(turn)
    if record["credit"] is not None:
        record["credit"] = dump_credit(record["credit"])
    for name in (*IDS, *FLOATS):
        value = record[name]
        record[name] = None if value is None else value.tolist()
    record["messages"] = [
        [m.role, m.text, None if m.tokens is None else m.tokens.tolist(), m.name, m.own]
        for m in turn.messages
    ]
    return record


def _turn(record: Record) -> Turn:
    for names, kind in ((IDS, np.int32), (FLOATS, np.float32)):
        for name in names:
            if record.get(name) is not None:
                record[name] = np.array(record[name], dtype=kind)
    record["messages"] = [
        Message(
            role, content, None if ids is None else np.array(ids, dtype=np.int32), name, tuple(own)
        )
        for role, content, ids, name, own in record["messages"]
    ]
    _read_notes(record)
    record["path"] = tuple(record["path"])
    record["parents"] = tuple(record["parents"])
    return _nest(record)


def _flatten(turn: Turn) -> JsonObject:
    """Return a turn's fields with those of its notes beside them, as records have had them."""
    record = {f.name: getattr(turn, f.name) for f in fields(Turn) if f.name not in HOLDERS}
    return record | {name: attrgetter(path)(turn) for name, path in NOTE_PATHS.items()}


def _nest(record: Record) -> Turn:
    """Return the turn of a record that `_flatten` made."""
    notes: dict[str, dict[str, Any]] = {name: {} for name in HOLDERS}
    for name in NOTE_PATHS.keys() & record.keys():
        owner, _, note = NOTE_PATHS[name].partition(".")
        notes[owner][note] = record.pop(name)
    return Turn(**record, **{name: kind(**notes[name]) for name, kind in HOLDERS.items()})


DEFAULTS = _flatten(Turn("", "", "", "", "", ()))


def _read_notes(record: Record) -> None:
    """Turn what JSON has of utilities, credit and coaches into their types again."""
    if record.get("utility") is not None:
        record["utility"] = Utility(**record["utility"])
    if record.get("credit") is not None:
        record["credit"] = load_credit(record["credit"])
    if record.get("coach") is not None:
        record["coach"] = _coach_note(record["coach"])


def _coach_note(record: Record) -> CoachNote:
    later = record.pop("hindsight")
    return CoachNote(**record, hindsight=None if later is None else _coach_note(later))


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


@cache
def _schema() -> pa.Schema:
    """Return the schema: one row a turn, with what belongs to the episode repeated.

    An episode without turns has one row.
    """
    import pyarrow as pa  # a command begins without it

    return pa.schema(
        [
            ("step", pa.int32()),
            ("split", pa.string()),
            ("task", pa.string()),
            ("source", pa.string()),
            ("family", pa.string()),
            ("question", pa.string()),
            ("reference", pa.string()),
            ("episode", pa.string()),
            ("attempt", pa.int32()),
            ("answer", pa.string()),
            ("score", pa.float64()),
            ("episode_rewards", pa.map_(pa.string(), pa.float64())),
            ("error", pa.string()),
            ("turn", pa.string()),
            ("agent", pa.string()),
            ("policy", pa.string()),
            ("path", pa.list_(pa.int32())),
            ("index", pa.int32()),
            ("parents", pa.list_(pa.string())),
            ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("text", pa.string()),
            ("finish", pa.string()),
            ("valid", pa.bool_()),
            ("trained", pa.bool_()),
            ("chosen", pa.bool_()),
            ("turn_rewards", pa.map_(pa.string(), pa.float64())),
            ("world_rewards", pa.map_(pa.string(), pa.float64())),
            ("payments", pa.map_(pa.string(), pa.float64())),
            ("inner_reward", pa.float64()),
            ("estimate", pa.float64()),
            ("advantage", pa.float64()),
            ("prompt_token_ids", pa.list_(pa.int32())),
            ("token_ids", pa.list_(pa.int32())),
            ("logprobs", pa.list_(pa.float32())),
            ("advantages", pa.list_(pa.float32())),
            ("returns", pa.list_(pa.float32())),
            ("values", pa.list_(pa.float32())),
            ("ref_logprobs", pa.list_(pa.float32())),
            ("candidate", pa.int32()),
            ("info", pa.string()),
            ("versions", pa.list_(pa.int32())),
            ("credit", pa.string()),
            ("metrics", pa.map_(pa.string(), pa.float64())),
            ("weight", pa.float64()),
            ("temperature", pa.float64()),
            ("began_s", pa.float32()),
            ("ended_s", pa.float32()),
        ]
    )


def compress(schema: pa.Schema, diverse: Collection[str]) -> dict[str, Any]:
    """Return how Parquet files are compressed; `diverse` names columns that hardly repeat."""
    leaves = [
        f"{name}.list.element" if hasattr(schema.field(name).type, "value_type") else name
        for name in diverse
    ]
    return {
        "compression": "zstd",
        "use_byte_stream_split": leaves,
        "use_dictionary": [name for name in schema.names if name not in diverse],
    }


def write_parquet(path: Path, episodes: list[Episode], *, step: int) -> None:
    """Write every turn with text, ids, rewards, advantages and errors, aside and then renamed."""
    with EpisodeWriter(path, step=step) as file:
        file.write(episodes)


class EpisodeWriter:
    """Writes episodes to a Parquet file as they come; it is there once all are, and not before."""

    def __init__(self, path: Path, *, step: int) -> None:
        self.path, self.step = path, step
        self._aside = path.with_suffix(".tmp")
        self._rows: list[JsonObject] = []

    def __enter__(self) -> EpisodeWriter:
        from pyarrow import parquet

        self._file = parquet.ParquetWriter(self._aside, _schema(), **compress(_schema(), DIVERSE))
        return self

    def write(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self._rows += _rows(episode, step=self.step)
            if len(self._rows) >= MOST_ROWS:
                self._flush()

    def _flush(self) -> None:
        from pyarrow import Table

        self._file.write_table(Table.from_pylist(self._rows, schema=_schema()))
        self._rows = []

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._flush()
        self._file.close()
        if error is None:
            os.replace(self._aside, self.path)
        else:
            self._aside.unlink(missing_ok=True)


def read_parquet(path: Path, *, task: str | None = None) -> list[Episode]:
    """Return the episodes of `write_parquet`, or those of one task.

    It leaves out the tokens of messages, the learner's log-probs of an update, the info of tasks,
    and all scores but the one that counts.
    """
    from pyarrow import parquet

    episodes: dict[str, Episode] = {}
    where = None if task is None else [("task", "=", task)]
    for row in parquet.read_table(path, filters=where).to_pylist():
        episode = episodes.setdefault(row["episode"], _read_episode(row))
        if row["turn"] is not None:
            episode.turns.append(_read_turn(row))
    return list(episodes.values())


def _read_episode(row: JsonObject) -> Episode:
    info = {name: row[name] for name in ("source", "family") if row.get(name)}
    task = Task(row["task"], row["question"], row["reference"], info)
    return Episode(
        id=row["episode"],
        task=task,
        attempt=row["attempt"],
        seed=0,
        rewards=dict(row["episode_rewards"]),
        judged_score=row["score"],
        answer=row["answer"],
        error=row["error"],
        step=row["step"],
        split=row["split"],
        metrics=dict(row.get("metrics") or ()),
    )


def _read_turn(row: JsonObject) -> Turn:
    same = (
        "task", "episode", "agent", "policy", "index", "text", "finish", "valid", "trained",
        "chosen", "candidate",
    )  # fmt: skip
    arrays = {"prompt": "prompt_token_ids", "tokens": "token_ids", "versions": "versions"}
    arrays |= {name: name for name in FLOATS if name in row}
    info = json.loads(row["info"])
    # Weight and temperature were notes in version 0.1.
    notes = {name: info.pop(name) for name in (*NOTES, *ADDED) if name in info}
    notes |= {name: row[name] for name in ADDED if row.get(name) is not None}
    if row.get("credit") is not None:
        notes["credit"] = json.loads(row["credit"])
    _read_notes(notes)
    if "imitated" in notes:
        notes["imitated"] = _array("imitated", notes["imitated"])
    record = {
        "id": row["turn"],
        "path": tuple(row["path"]),
        "parents": tuple(row["parents"]),
        "messages": [Message(m["role"], m["content"]) for m in row["messages"]],
        "rewards": dict(row["turn_rewards"]),
        "world_rewards": dict(row.get("world_rewards") or ()),
        "payments": dict(row.get("payments") or ()),
        "inner_reward": row.get("inner_reward"),
        "estimate": row.get("estimate"),
        "info": info,
    }
    arrays_read = {name: _array(name, row[column]) for name, column in arrays.items()}
    return _nest(record | notes | {name: row[name] for name in same} | arrays_read)


def _array(name: str, values: list[JsonValue] | None) -> Any:
    kind = np.int32 if name in IDS else np.float32
    return None if values is None else np.array(values, dtype=kind)


def _rows(episode: Episode, *, step: int) -> list[JsonObject]:
    shared = {
        "step": step,
        "split": episode.split,
        "task": episode.task.id,
        "source": episode.task.source,
        "family": episode.task.family,
        "question": episode.task.prompt,
        "reference": str(episode.task.answer),
        "episode": episode.id,
        "attempt": episode.attempt,
        "answer": episode.answer,
        "score": episode.headline,
        "episode_rewards": list(episode.rewards.items()),
        "error": episode.error,
        "metrics": list(episode.metrics.items()),
    }
    if not episode.turns:
        return [shared]
    return [shared | _turn_row(turn) for turn in episode.turns]


def _turn_row(turn: Turn) -> JsonObject:
    advantages, credit = turn.advantages, turn.training.credit
    info = turn.info | _notes(turn)
    return {
        "turn": turn.id,
        "agent": turn.agent,
        "policy": turn.policy,
        "path": list(turn.path),
        "index": turn.index,
        "parents": list(turn.parents),
        "messages": [{"role": m.role, "content": m.text} for m in turn.messages],
        "text": turn.text,
        "finish": turn.finish,
        "valid": turn.valid,
        "trained": turn.trained,
        "chosen": turn.chosen,
        "turn_rewards": list(turn.rewards.items()),
        "world_rewards": list(turn.world_rewards.items()),
        "payments": list(turn.payments.items()),
        "inner_reward": turn.training.inner_reward,
        "estimate": turn.training.estimate,
        "advantage": None if advantages is None else float(advantages.mean()),
        "prompt_token_ids": turn.prompt,
        "token_ids": turn.tokens,
        "logprobs": turn.logprobs,
        "advantages": advantages,
        "returns": turn.returns,
        "values": turn.training.values,
        "ref_logprobs": turn.training.ref_logprobs,
        "candidate": turn.candidate,
        "info": json.dumps(info, default=_plain) if info else "{}",
        "versions": turn.versions,
        "credit": None if credit is None else json.dumps(dump_credit(credit)),
    } | {name: getattr(turn, name) for name in ADDED}


def _notes(turn: Turn) -> JsonObject:
    """Return the notes on a turn beside its numbers, for people who read the table."""
    notes: JsonObject = {}
    for name, read in NOTE_READERS.items():
        value, default = read(turn), DEFAULTS[name]
        if value is default:  # most of them
            continue
        if isinstance(value, np.ndarray) or (value not in (None, "", [], {}) and value != default):
            notes[name] = value
    return notes
