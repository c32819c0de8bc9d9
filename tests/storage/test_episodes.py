"""Episodes survive the journal bit for bit, and Parquet holds what people read."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from rolecall.core.credit import Compared
from rolecall.core.types import CoachNote, Message, Task, Turn, Utility
from rolecall.rollout.group_player import Collection
from rolecall.storage.episode_io import from_json, read_parquet, to_json, write_parquet
from rolecall.storage.journal import Journal, iterate_journals
from rolecall.storage.run_folder import RunFolder
from tests.toy import episode, turn


def example():
    made = turn("solver", rewards={"invalid": -0.1}, advantage=0.1)
    made.logprobs = np.array([-0.1, np.float32(1) / 3], dtype=np.float32)
    made.messages = [Message("user", "2+2?"), Message("assistant", "4", np.array([7], np.int32))]
    made.parents = ("e0/0",)
    made.coach.note = CoachNote(8.0, "Right.", {"tries": 1}, hindsight=CoachNote(2.0, "Lost.", {}))
    made.training.utility = Utility(1.0, 0.5, 0.25, 2.0, 1.5)
    found = episode(1, [made], {"team": 1.0})
    found.task = Task("x", "2+2?", ["4", "four"], {"source": "sums"})
    found.scores = {"team": 1.0}
    return found


def test_a_record_of_version_0_1_is_read():
    """Its scores stood among the metrics."""
    record = json.loads(to_json(example()))
    for name in ("scores", "judged_score", "is_truncated", "is_mistake"):
        del record[name]
    record["metrics"] = {"score": 1.0, "score/solver": 0.5, "headline": 0.25, "wall_s": 2.0}
    record["metrics"] |= {"truncated": 1.0, "mistake": 0.0}
    read = from_json(json.dumps(record))
    assert read.scores == {"team": 1.0, "solver": 0.5}
    assert (read.judged_score, read.is_truncated, read.is_mistake) == (0.25, True, False)
    assert read.metrics == {"wall_s": 2.0}


def same(a, b) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_a_journal_line_gives_back_the_same_episode():
    assert same(from_json(to_json(example())), example())


# Log-probs of an update, which comes after the file; and the step, of which episodes have one.
NOT_IN_PARQUET = {"prox_logprobs", "new_logprobs", "group"}
HOLDERS = ("training", "tools", "coach")  # of notes, beside the turn's own fields


def full_turn() -> Turn:
    """A turn of which no field has its default, nor has any of its notes."""
    made = turn("solver", rewards={"invalid": -0.1}, advantage=0.5, path=(0, 1))
    numbers = iter(range(2, 99))
    for owner in owners(made):
        fill(owner, numbers)
    made.id, made.episode = "x:1/0.1", "x:1"
    return made


def owners(made: Turn) -> list:
    return [made, *(getattr(made, name) for name in HOLDERS)]


def fill(owner, numbers: Iterator[int]) -> None:
    for field in dataclasses.fields(owner):
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name in HOLDERS or not same(getattr(owner, field.name), default):
            continue
        if "Floats" in str(field.type):
            value = np.array([next(numbers), 0.25], dtype=np.float32)
        else:
            value = {
                "bool": not default, "float": 0.25, "float | None": 0.25, "str": field.name,
                "int": next(numbers), "int | None": next(numbers), "list[str]": ["name"],
                "dict[str, int]": {"file": 3}, "dict[str, float]": {"name": 0.25},
                "str | None": field.name,
                "dict[str, float] | None": {"solver": 0.5}, "dict[str, Any]": {"note": "kept"},
                "list[dict[str, Any]]": [{"name": "search"}], "tuple[str, ...]": ("e0/0",),
                "list[Message]": [Message("user", "2+2?")],
                "Utility | None": Utility(1.0, 0.5, 0.25, 2.0, 1.5),
                "tuple[CreditTerm, ...] | None": (Compared(1.0, 0.5),),
                "CoachNote | None": CoachNote(8.0, "Right.", {}, hindsight=CoachNote(2.0, "", {})),
            }[str(field.type)]  # fmt: skip
        setattr(owner, field.name, value)


def test_every_field_of_a_turn_survives_the_journal_and_the_parquet_file(tmp_path):
    """A field that is added has to be kept, or named above with the reason."""
    made = full_turn()
    [kept] = from_json(to_json(episode(1, [made], {"team": 1.0}))).turns
    write_parquet(tmp_path / "e.parquet", [episode(1, [full_turn()], {"team": 1.0})], step=3)
    [[stored]] = [e.turns for e in read_parquet(tmp_path / "e.parquet")]
    for expected, journaled, read in zip(*map(owners, (made, kept, stored)), strict=True):
        for name in {field.name for field in dataclasses.fields(expected)} - {*HOLDERS}:
            wanted = getattr(expected, name)
            assert same(getattr(journaled, name), wanted), name
            assert same(getattr(read, name), wanted) != (name in NOT_IN_PARQUET), name


def test_a_field_that_moved_to_notes_says_where_it_is():
    with pytest.raises(AttributeError, match=r"^Turn.values is now Turn.training.values$"):
        turn().values  # noqa: B018
    with pytest.raises(AttributeError, match=r"^Turn.coach_error is now Turn.coach.error$"):
        turn().coach_error  # noqa: B018
    with pytest.raises(AttributeError, match=r"^'Turn' object has no attribute 'error'$"):
        turn().error  # noqa: B018


def test_a_note_in_info_does_not_stand_for_a_field_of_the_turn(tmp_path):
    made = turn()
    made.candidate_error, made.info = "ValueError: gone", {"candidate_error": "of mine"}
    write_parquet(tmp_path / "e.parquet", [episode(1, [made], {})], step=3)
    [[stored]] = [e.turns for e in read_parquet(tmp_path / "e.parquet")]
    assert stored.candidate_error == "ValueError: gone"


def test_the_task_of_a_parquet_file_has_its_source_and_family(tmp_path):
    made = episode(1, [turn()], {})
    made.task = Task("x", "2+2?", "4", {"source": "sums", "family": "maths"})
    write_parquet(tmp_path / "e.parquet", [made], step=3)
    [stored] = read_parquet(tmp_path / "e.parquet")
    assert (stored.task.source, stored.task.family) == ("sums", "maths")


def test_parquet_has_a_row_a_turn_and_one_for_an_episode_without_turns(tmp_path):
    silent = episode(2, [], {})
    silent.error = "TimeoutError: "
    write_parquet(tmp_path / "e.parquet", [example(), silent], step=3)
    spoken, failed = pq.read_table(tmp_path / "e.parquet").to_pylist()
    assert (spoken["step"], spoken["agent"], spoken["token_ids"]) == (3, "solver", [7, 8])
    assert spoken["turn_rewards"] == [("invalid", -0.1)]
    assert spoken["episode_rewards"] == [("team", 1.0)]
    assert abs(spoken["advantage"] - 0.1) < 1e-6
    assert (failed["error"], failed["turn"]) == ("TimeoutError: ", None)


def test_parts_of_a_journal_are_read_together_and_each_attempt_once(tmp_path):
    """A process that was killed in the middle of a line goes on in a line of its own."""
    folder = RunFolder(tmp_path)
    folder.journal.mkdir()
    journal = Journal(folder.journal_file(3))
    parts = [journal.part("worker-0"), journal.part("worker-1")]
    for number in range(4):
        parts[number % 2].append(episode(number, [turn()], {"team": number}))
    parts[1].append(episode(0, [turn()], {"team": 9.0}))
    cut = parts[0].path.read_text()[:-20]
    parts[0].close()
    parts[0].path.write_text(cut)
    parts[0].append(episode(5, [turn()], {"team": 5.0}))
    found = {each.attempt: each.rewards["team"] for each in journal.read()}
    assert found == {0: 0.0, 1: 1.0, 3: 3.0, 5: 5.0}
    assert [(step, path.name) for step, path in iterate_journals(folder.journal)] == [
        (3, "step-000003.worker-0.jsonl"),
        (3, "step-000003.worker-1.jsonl"),
    ]


def test_episodes_are_on_disk_before_they_are_given_to_the_trainer(tmp_path, monkeypatch):
    """The disk is waited for once a second, not after each; other processes see each at once."""
    journal, waits = Journal(tmp_path / "step-000003.jsonl"), []
    monkeypatch.setattr(os, "fsync", lambda handle: waits.append(handle))
    for number in range(5):
        journal.append(episode(number, [turn()], {"team": number}))
        assert len(list(Journal(journal.path).read())) == number + 1
    assert len(waits) == 1, "the first: nothing was settled before"
    playing = SimpleNamespace(concurrency=1)
    Collection(playing, [], step=3, group_size=1, journal=journal).take()
    assert len(waits) == 2
    journal.part("worker-0").append(episode(6, [turn()], {"team": 6}))
    assert len(waits) == 3
    journal.close()
    assert len(waits) == 4
