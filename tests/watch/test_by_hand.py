"""Numbers of the watch page that are computed by hand here."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rolecall.core.types import CoachNote, Episode
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.watch.runs import Runs
from rolecall.watch.server import Watch, make_app
from tests.watch.small_runs import make_episode, write_run

GAIN = 0.5 / (0.5 + 1e-6)  # of a right attempt, as small_runs compares them


def ask(folder: Path, question: str, **query: object) -> dict:
    answer = TestClient(make_app(Watch(Runs([folder])))).get(f"/api/{question}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def write_changed(folder: Path, change: Callable[[list[Episode]], None], *, name: str) -> None:
    """Write a run of one step whose four attempts are changed before."""
    run = RunFolder(write_run(folder / name, steps=0))
    episodes = [make_episode(1, task, attempt) for task in ("add", "sub") for attempt in (0, 1)]
    change(episodes)
    write_parquet(run.episode_file(1), episodes, step=1)


def write_evaluation(folder: Path, step: int, scores: dict[str, list[float]]) -> None:
    episodes = []
    for task, attempts in scores.items():
        for attempt, score in enumerate(attempts):
            episode = make_episode(step, task, attempt)
            episode.scores = episode.rewards = {"team": score}
            episodes.append(episode)
    write_parquet(folder / f"evaluation-{step:06d}.parquet", episodes, step=step)


def test_tasks_of_two_evaluations_are_paired_by_their_mean_scores(tmp_path):
    first, second = (write_run(tmp_path / name, steps=1) for name in ("a", "b"))
    write_evaluation(first, 0, {"x": [1.0, 1.0]})  # an older one does not count
    write_evaluation(first, 3, {"x": [0.0, 1.0], "y": [1.0, 1.0], "z": [0.5, 0.5], "own": [1.0]})
    write_evaluation(second, 4, {"x": [1.0, 1.0], "y": [1.0, 0.0], "z": [1.0, 1.0], "none": [1.0]})
    answer = ask(tmp_path, "compare", first="a", second="b")
    assert {p["task"]: (p["first"], p["second"], p["difference"]) for p in answer["pairs"]} == {
        "x": (0.5, 1.0, 0.5), "y": (1.0, 0.5, -0.5), "z": (0.5, 1.0, 0.5),
    }  # fmt: skip
    assert answer["of_pairs"] == 3
    assert answer["mean"] == pytest.approx(1 / 6)
    deviation = math.sqrt(((1 / 3) ** 2 + (1 / 3) ** 2 + (2 / 3) ** 2) / 2)
    assert answer["margin"] == pytest.approx(1.96 * deviation / math.sqrt(3))
    assert answer["note"] == "the newest evaluations: after step 3 and after step 4"


def test_calls_of_tools_are_counted_by_their_problems_and_compared_by_advantage(tmp_path):
    def call(problem: str, seconds: float) -> dict:
        return {"name": "search", "arguments": {}, "result": "", "problem": problem,
                "seconds": seconds}  # fmt: skip

    def change(episodes: list[Episode]) -> None:
        for episode in episodes:
            episode.turns[1].tools.calls = []
        wrong, right = episodes[0].turns[1], episodes[1].turns[1]
        wrong.tools.calls = [call("timeouts", 3.0), call("raised", 1.0), call("refused", 0.0)]
        right.tools.calls = [call("", 2.0)]
        episodes[3].turns[1].tools.calls = [call("", 4.0)]

    write_changed(tmp_path, change, name="mine")
    [tool] = ask(tmp_path, "tools", run="mine")["rows"]
    assert (tool["agent"], tool["tool"], tool["calls"]) == ("judge", "search", 5)
    assert (tool["errors"], tool["timed_out"], tool["refused"]) == (1, 1, 1)
    assert tool["seconds"] == pytest.approx(2.0)
    assert tool["advantage_with"] == pytest.approx((-GAIN + GAIN + GAIN) / 3, rel=1e-5)
    assert tool["advantage_without"] == pytest.approx(-GAIN, rel=1e-5)
    assert "turn=1%3Aadd%3A0%2F1" in tool["examples"][0]["href"]  # one that failed stands first


def test_the_final_score_of_a_coach_is_correlated_with_the_outcome(tmp_path):
    finals = (1.0, 4.0, 3.0, 4.0)  # of attempts that are wrong, right, wrong, right

    def change(episodes: list[Episode]) -> None:
        for episode, score in zip(episodes, finals, strict=True):
            later = CoachNote(score, "Later.", {})
            episode.turns[0].coach.note = CoachNote(5.0, "First.", {}, hindsight=later)
        episodes[0].turns[1].coach.error = "no answer"

    write_changed(tmp_path, change, name="mine")
    page = ask(tmp_path, "coach", run="mine")
    # Means 3 and 0.5: covariance 2.0, squares 6.0 and 1.0.
    assert page["correlation"]["solver"] == pytest.approx(2.0 / math.sqrt(6.0))
    assert {(row["score"], row["reasoning"]) for row in page["rows"]} == {(5.0, "Later.")}
    assert sorted(row["hindsight"] for row in page["rows"]) == sorted(finals)
    assert page["failures"] == [["1:add:0/1", "no answer"]]


def test_a_bounded_score_and_one_of_0_to_1_are_shown_of_10(tmp_path):
    def change(episodes: list[Episode]) -> None:
        for episode in episodes:
            episode.turns[0].coach.note = None
        capped = CoachNote(0.3, "Fine.", {}, scale=1.0, uncapped=0.8, cap="score 0 is below 0.5")
        episodes[0].turns[0].coach.note = capped

    write_changed(tmp_path, change, name="mine")
    [row] = ask(tmp_path, "coach", run="mine")["rows"]
    assert row["score"] == pytest.approx(3.0)
    assert row["reasoning"] == "Capped from 0.8 of 1: score 0 is below 0.5\nFine."


def test_verdicts_are_true_where_they_agree_with_the_outcome(tmp_path):
    def change(episodes: list[Episode]) -> None:
        episodes[0].turns[1].verdict = "approve"  # of a wrong attempt
        episodes[2].turns[1].verdict = "raise"  # no judgement of an answer
        episodes[3].error = "OSError: lost"  # not scored

    write_changed(tmp_path, change, name="mine")
    roles = ask(tmp_path, "roles", run="mine")
    cells = {cell["verdict"]: (cell["right"], cell["wrong"]) for cell in roles["cells"]}
    assert cells == {"approve": (1, 1), "raise": (0, 1)}
    assert roles["by_step"] == [[1, "judge", 0.5]]
    [wrong] = next(c["links_wrong"] for c in roles["cells"] if c["verdict"] == "approve")
    assert "episode=1%3Aadd%3A0" in wrong["href"]


def test_a_prompt_that_changed_has_versions_with_their_steps(tmp_path):
    run = RunFolder(write_run(tmp_path / "mine", steps=2))
    episodes = [make_episode(3, "add", attempt) for attempt in (0, 1)]
    for episode in episodes:
        message = episode.turns[0].messages[0]
        episode.turns[0].messages[0] = type(message)("system", "You are careful.")
    write_parquet(run.episode_file(3), episodes, step=3)
    agents = ask(tmp_path, "prompts", run="mine")["agents"]
    [solver] = [one for one in agents if (one["agent"], one["role"]) == ("solver", "system")]
    assert [(v["text"], v["steps"], v["count"]) for v in solver["versions"]] == [
        ("You are solver.", [1, 2], 8), ("You are careful.", [3, 3], 2),
    ]  # fmt: skip
