"""Debates are zero-sum, and where the right side is known the judge is measured."""

from __future__ import annotations

import json

import pytest

from rolecall.environments.debate import DebateEnvironment
from rolecall.workflows.debate import debate
from tests.workflows.teams import play_team, turns_of


def environment(**options) -> DebateEnvironment:
    return DebateEnvironment(**options)


def held(folder, verdict: str, *, attempt: int = 0):
    task = environment().tasks("test")[0]
    says = {"ann": ["x"], "ben": ["y"], "judge": [f"<winner>{verdict}</winner>"]}
    return task, play_team(
        folder, debate, says, roles={"ann": "debater", "ben": "debater"}, options={"rounds": 1},
        world=lambda: environment().open(task, seed=0), attempt=attempt,
    )  # fmt: skip


def test_half_of_the_claims_are_wrong_and_the_right_side_is_known():
    tasks = environment().tasks("train")[:400]
    sides = [task.answer for task in tasks]
    assert 150 < sides.count("for") < 250
    for task in tasks:
        said = task.prompt.removesuffix(".").rpartition(" ")[2]
        assert (said == task.info["value"]) == (task.answer == "for")
    assert not {t.prompt for t in tasks} & {t.prompt for t in environment().tasks("test")}


def test_what_one_wins_the_other_loses_and_the_judge_is_paid_for_being_right(model_folder):
    seen = set()
    for attempt in range(12):
        task, episode = held(model_folder, "A", attempt=attempt)
        assert episode.error is None
        scores = episode.scores
        found = json.loads(episode.answer)
        loser = ({"ann", "ben"} - {found["winner"]}).pop()
        right = float(found["side"] == task.answer)
        assert scores == {
            found["winner"]: 1.0, loser: -1.0, "judge": right,
        }  # fmt: skip
        assert episode.metrics["count/debates_a"] == 1
        assert episode.metrics.get("count/debates_right", 0) == right
        assert episode.headline == right
        seen.add((found["winner"], right))
        assert len(turns_of(episode, "judge")) == 1
    assert len(seen) == 4


def test_a_tie_pays_nobody(model_folder):
    _, episode = held(model_folder, "tie")
    assert episode.scores["ann"] == episode.scores["ben"] == 0.0
    assert "count/debates_a" not in episode.metrics
    assert "team" not in episode.scores  # nobody else is paid for what the judge says


def test_rows_of_files_are_read_and_bad_ones_named(tmp_path):
    rows = [{"proposition": "Cats fly.", "side": "against", "id": 7}, {"proposition": "Tea."}]
    good = tmp_path / "good.jsonl"
    good.write_text("\n".join(map(json.dumps, rows)))
    first, second = environment(train=str(good)).tasks("train")
    assert (first.id, first.prompt, first.answer) == ("7", "Cats fly.", "against")
    assert first.info == {"source": "good"}
    assert (second.id, second.answer) == ("good-2", None)
    for bad, told in (
        ({"text": "x"}, "no proposition"),
        (rows[0] | {"side": "no"}, "side is 'no'"),
    ):
        file = tmp_path / "bad.jsonl"
        file.write_text("\n".join(map(json.dumps, [rows[1], bad, bad])))
        with pytest.raises(ValueError, match=rf"bad.jsonl:2: {told}"):
            environment(train=str(file)).tasks("train")


@pytest.mark.parametrize(
    "options", [{"test_size": 5, "test": "x"}, {"level": 2, "train": "x", "test": "y"}]
)
def test_options_without_effect_are_errors(options):
    with pytest.raises(ValueError, match="has no effect"):
        environment(**options)


def test_the_topics_of_the_library_are_open_and_divided_among_the_splits():
    environment = DebateEnvironment(train="topics", test="topics")
    train, test = environment.tasks("train"), environment.tasks("test")
    assert (len(train), len(test)) == (16, 8)
    assert not {task.prompt for task in train} & {task.prompt for task in test}
    assert all(task.answer is None and task.info["key_points"] for task in [*train, *test])
