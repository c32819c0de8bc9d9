"""A run in which nothing could be trained leaves all that shows why."""

from __future__ import annotations

import json

import pytest

from rolecall.core.errors import RunFailedError
from rolecall.monitor.reading import extremes
from rolecall.monitor.summary import check_trained
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.training.signal_watch import SignalWatch
from tests.cli.test_cli import rolecall
from tests.monitor.runs_for_tests import episode
from tests.toy import Letters, LettersWorld, relay_config, solo_config, turn, write

pytestmark = pytest.mark.slow


class FlatWorld(LettersWorld):
    async def score(self, episode):
        return {"team": 0.0}


class Flat(Letters):
    """Its worlds score every answer alike."""

    def open(self, task, *, seed):
        return FlatWorld(task, seed, 0.0, 0.0)


@pytest.mark.parametrize("idle_steps", [2, 9])
def test_a_run_without_signal_leaves_report_curves_and_summary(
    idle_steps, model_folder, tmp_path, capsys
):
    config = solo_config(
        model_folder, environment={"name": f"{__file__}:Flat"}, evaluation={"tasks": 0},
        trainer={"steps": 3, "idle_steps": idle_steps},
    )  # fmt: skip
    path, run = write(tmp_path / "team.yaml", config), tmp_path / "run"
    for _ in range(2):  # a second start may not call it a success
        status, out, error = rolecall("train", path, "--output", run, capsys=capsys)
        assert status == 1
        assert "nothing" in error.splitlines()[-1]
        if "left=" in out:  # it played
            line = next(line for line in out.splitlines() if line.startswith("policy a: "))
            assert "without signal 1.00" in line
    for name in ("report.html", "curves.png", "summary.json"):
        assert (run / name).is_file()
    steps = RunFolder(run).read_metrics()
    shares = json.loads((run / "summary.json").read_text())["policies"]["a"]
    assert shares["zero_signal"] == 1.0
    assert shares["turns"] == 3 * 4 * len(steps)  # a turn in each of 3 x 4 attempts
    cut = [record["agent/solver/truncated"] for record in steps]
    assert shares["truncated"] == pytest.approx(sum(cut) / len(cut))
    page = (run / "report.html").read_text()
    assert "Without signal" in page
    assert "All score alike" in page
    assert "Best conversations" not in page
    status, out, _ = rolecall("show", run, "--json", capsys=capsys)
    assert {talk["shown_as"] for talk in json.loads(out)} == {"alike"}


def test_no_conversation_is_shown_as_best_and_as_worst(tmp_path):
    file = tmp_path / "step-000001.parquet"

    def shown(scores: dict[str, list[float]], number: int) -> tuple[list[str], list[str]]:
        played = [
            episode(task, attempt, score=score)
            for task, each in scores.items()
            for attempt, score in enumerate(each)
        ]
        write_parquet(file, played, step=1)
        found = extremes(file, number)
        assert found.alike == []
        return tuple(
            [f"{t.task}:{t.attempt}" for t in talks] for talks in (found.best, found.worst)
        )

    assert shown({"a": [1.0], "b": [0.0]}, 3) == (["a:0"], ["b:0"])
    assert shown({"a": [1.0], "b": [0.5], "c": [0.0]}, 3) == (["a:0", "b:0"], ["c:0"])
    assert shown({"a": [1.0, 0.0], "b": [0.0, 1.0]}, 2) == (["a:0", "b:1"], ["a:1", "b:0"])
    assert shown({"a": [1.0, 0.0, 0.5]}, 1) == (["a:0"], ["a:1"])
    write_parquet(file, [episode("a", n, score=0.0) for n in range(4)], step=1)
    found = extremes(file, 3)
    assert (found.best, found.worst, len(found.alike)) == ([], [], 1)


async def pays_one(episode, world):
    """Pays `left` by what it says, and all others alike."""
    said = next(turn for turn in episode.turns if turn.agent == "left")
    return {"left": float(sum(said.tokens) % 2), "right": 0.5, "last": 0.5}


def test_agents_that_have_nothing_to_learn_from_are_named(model_folder, tmp_path, capsys):
    config = relay_config(
        model_folder, rewards={f"{__file__}:pays_one": 1.0}, evaluation={"tasks": 0},
        trainer={"steps": 3, "idle_steps": 2},
    )  # fmt: skip
    path, run = write(tmp_path / "team.yaml", config), tmp_path / "run"
    status, out, error = rolecall("train", path, "--output", run, capsys=capsys)
    assert status == 0, error
    warned = [line for line in out.splitlines() if line.startswith("! agent ")]
    assert [line.split()[2] for line in warned] == ["last", "right"]
    assert "in 2 steps in a row" in warned[0]
    assert "Not trained: right, last. None of their turns" in out
    assert json.loads((run / "summary.json").read_text())["untrained"] == ["right", "last"]
    assert (run / "report.html").read_text().count("no: none of its turns had a signal") == 2


def test_an_agent_with_a_signal_now_and_then_is_trained():
    watch = SignalWatch(["a", "b"], patience=2)
    zero, one = turn("a", advantage=0.0), turn("a", advantage=1.0)
    assert watch.after_step([zero]) == []
    assert watch.after_step([one]) == ["b"]
    assert watch.after_step([zero]) == []
    assert watch.after_step([]) == ["a"]
    assert watch.after_step([zero]) == []  # it is said once


@pytest.mark.parametrize(
    ("errors", "reason"), [(12, "no score in 12 of 12 calls"), (11, "no turn was ever worth more")]
)
def test_a_coach_that_scores_nothing_is_named(errors, reason):
    found = {"updates": 0, "steps": 1, "lost_episodes": 0, "episodes": 4}
    records = [{"kind": "step", "rollout/coach_calls": 12.0, "rollout/coach_errors": errors}]
    with pytest.raises(RunFailedError, match=reason):
        check_trained(found, records)
