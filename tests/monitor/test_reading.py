"""Parquet files become conversations in an order that is always the same."""

from rolecall.core.types import CoachNote
from rolecall.monitor.metrics import coach_metrics
from rolecall.monitor.reading import (
    attempts,
    best,
    held_out,
    newest_evaluation,
    newest_step,
    worst,
)
from tests.monitor.runs_for_tests import episode, make_run


def names(talks):
    return [talk.episode for talk in talks]


def some_episodes():
    return [
        episode("2+2", 0, score=1.0, advantage=0.5),
        episode("2+2", 1, score=0.0, advantage=-0.5),
        episode("1+3", 0, score=1.0, advantage=0.9),
        episode("1+3", 1, score=0.0, advantage=-0.9),
        episode("0+4", 0, score=1.0, advantage=0.5),
    ]


def test_best_are_ordered_by_score_then_advantage_then_id(tmp_path):
    file = newest_step(make_run(tmp_path / "run", episodes=some_episodes()))
    assert names(best(file, 9)) == ["1:1+3:0", "1:0+4:0", "1:2+2:0"]


def test_files_of_other_names_are_passed_over(tmp_path):
    folder = make_run(tmp_path / "run", episodes=some_episodes(), evaluated=some_episodes())
    folder.evaluated.mkdir()
    for place in (folder.path, folder.evaluated, folder.episodes):
        for name in ("evaluation-foo", "evaluation-", "step-1b", "step-x"):
            (place / f"{name}.parquet").write_text("no parquet")
    assert newest_step(folder).name == "step-000001.parquet"
    assert newest_evaluation(folder).name == "evaluation-000000.parquet"
    assert held_out(folder).name == "evaluation-000000.parquet"
    assert held_out(folder, step=0).name == "evaluation-000000.parquet"


def test_worst_are_ordered_from_the_other_end(tmp_path):
    file = newest_step(make_run(tmp_path / "run", episodes=some_episodes()))
    assert names(worst(file, 2)) == ["1:1+3:1", "1:2+2:1"]


def test_the_order_does_not_depend_on_the_order_in_the_file(tmp_path):
    one = newest_step(make_run(tmp_path / "one", episodes=some_episodes()))
    other = newest_step(make_run(tmp_path / "other", episodes=some_episodes()[::-1]))
    assert names(best(one, 5)) == names(best(other, 5))


def test_one_task_is_shown_once_unless_asked_otherwise(tmp_path):
    file = newest_step(make_run(tmp_path / "run", episodes=some_episodes()))
    assert names(worst(file, 3, one_per_task=False))[:2] == ["1:1+3:1", "1:2+2:1"]
    assert len(worst(file, 9, one_per_task=False)) == 5
    assert len(worst(file, 9)) == 3


def test_an_episode_that_failed_is_neither_best_nor_worst(tmp_path):
    failed = episode("9+9", 0, score=None, error="JudgeError: away")
    file = newest_step(make_run(tmp_path / "run", episodes=[*some_episodes(), failed]))
    assert "1:9+9:0" not in names(worst(file, 9)) + names(best(file, 9))
    assert attempts(file, "9+9")[0].error == "JudgeError: away"


def test_where_every_episode_failed_none_is_best_or_worst(tmp_path):
    failed = [episode("9+9", number, score=None, error="x: y") for number in range(2)]
    file = newest_step(make_run(tmp_path / "run", episodes=failed))
    assert best(file, 3) == worst(file, 3) == []


def test_without_a_score_the_outcome_decides(tmp_path):
    paid, unpaid = episode("2+2", 0, score=None), episode("1+3", 0, score=None)
    paid.rewards["team"] = 0.5
    file = newest_step(make_run(tmp_path / "run", episodes=[unpaid, paid]))
    assert names(best(file, 1)) == ["1:2+2:0"]
    assert best(file, 1)[0].score is None


def test_a_group_is_ordered_by_attempt_and_of_one_source(tmp_path):
    group = [episode("2+2", attempt) for attempt in (10, 2, 0, 1)]
    other = episode("2+2", 0, source="word")
    file = newest_step(make_run(tmp_path / "run", episodes=[*group, other]))
    assert [talk.attempt for talk in attempts(file, "2+2", source="add")] == [0, 1, 2, 10]
    assert [talk.source for talk in attempts(file, "2+2")] == ["add"] * 4 + ["word"]
    assert attempts(file, "no such task") == []


def test_a_conversation_holds_what_was_said_and_earned(tmp_path):
    played = episode("2+2", 1, score=1.0, advantage=0.5, text="<think>hm</think>It is 4.")
    played.turns[0].rewards["invalid"] = -0.25
    played.turns[1].finish = "length"
    file = newest_step(make_run(tmp_path / "run", episodes=[played]))
    [talk] = best(file, 1)
    assert (talk.step, talk.question, talk.reference) == (1, "What is 2+2?", "4")
    solver, verifier = talk.turns
    assert (solver.agent, solver.policy, solver.advantage) == ("solver", "small", 0.5)
    assert (solver.thinking, solver.spoken) == ("hm", "It is 4.")
    assert solver.rewards == {"invalid": -0.25}
    assert solver.messages == (("system", "Be exact."), ("user", "What is 2+2?"))
    assert verifier.finish == "length"


def test_an_episode_without_turns_is_a_conversation_without_turns(tmp_path):
    silent = episode("2+2", 0)
    silent.turns.clear()
    file = newest_step(make_run(tmp_path / "run", episodes=[silent]))
    assert worst(file, 1)[0].turns == ()


def test_the_newest_file_is_the_one_with_the_highest_step(tmp_path):
    folder = make_run(tmp_path / "run", episodes=[episode("2+2", 0)])
    assert newest_evaluation(folder) is None
    for step in (9, 1000000, 200):
        folder.episode_file(step).touch()
    assert newest_step(folder) == folder.episode_file(1000000)


def test_what_a_coach_said_is_read_and_a_missing_score_is_not_a_frozen_agent(tmp_path):
    played = episode("2+2", 1, score=1.0)
    judged, lost = played.turns
    usage = {
        "tries": 1,
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "cost_usd": 0.5,
        "latency_s": 2,
    }
    second = CoachNote(2.0, "It failed.", usage)
    judged.coach.note = CoachNote(7.0, "Fine.", usage, hindsight=second)
    lost.coach.error, lost.trained = "no score within 4 s", False
    [talk] = best(newest_step(make_run(tmp_path / "run", episodes=[played])), 1)
    first, other = talk.turns
    assert first.coach == "7 of 10: Fine.\nin hindsight 2 of 10: It failed."
    assert (other.coach, other.unscored) == ("no score: no score within 4 s", True)
    assert not first.unscored
    assert coach_metrics(played.turns) == {
        "coach/solver/score": 2.0, "coach/solver/errors": 0, "coach/verifier/errors": 1,
        "coach/tokens": 14, "coach/cost_usd": 1.0, "coach/latency_s": 2.0,
    }  # fmt: skip
    assert coach_metrics(episode("2+2", 2, score=1.0).turns) == {}


def test_a_score_that_a_metric_bounded_is_told_with_the_coachs_own(tmp_path):
    played = episode("2+2", 1, score=1.0)
    usage = {"tries": 0, "cost_usd": 0.0}
    note = CoachNote(4.0, "Fine.", usage, uncapped=8.0, cap="score 0.2 is below 0.5")
    played.turns[0].coach.note = note
    played.turns[1].coach.note = CoachNote(0.8, "Good.", usage, scale=1.0)
    [talk] = best(newest_step(make_run(tmp_path / "run", episodes=[played])), 1)
    assert [turn.coach for turn in talk.turns] == [
        "4 of 10 (capped from 8: score 0.2 is below 0.5): Fine.", "0.8 of 1: Good.",
    ]  # fmt: skip
