"""pass@k is unbiased, intervals are over tasks, and evaluations repeat."""

from __future__ import annotations

from itertools import combinations

import pytest

from rolecall.config.evaluation import EvaluationConfig
from rolecall.core.types import Task
from rolecall.rollout.evaluation_summary import over_tasks, pass_at_k, summarise
from rolecall.rollout.held_out import held_out
from tests.toy import episode


@pytest.mark.parametrize(("n", "c", "k"), [(8, 0, 1), (8, 2, 1), (8, 2, 4), (5, 3, 2), (8, 8, 8)])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n, c, k):
    samples = [True] * c + [False] * (n - c)
    subsets = list(combinations(samples, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_needs_k_samples():
    with pytest.raises(ValueError, match="pass@9"):
        pass_at_k(8, 1, 9)


def test_the_margin_is_two_standard_errors_over_tasks():
    score = over_tasks([0.0, 1.0, 0.0, 1.0])
    assert (score.mean, score.num_tasks) == (0.5, 4)
    assert score.margin == pytest.approx(1.96 * 0.57735 / 2, rel=1e-4)
    assert over_tasks([0.3]).margin is None


def test_scores_are_reported_by_data_source():
    groups = []
    for number, (source, scores) in enumerate(
        [("gsm8k", [1, 1]), ("gsm8k", [0, 1]), ("aime", [0, 0])]
    ):
        group = []
        for attempt, value in enumerate(scores):
            made = episode(attempt, [], {})
            made.task = Task(f"t{number}", "?", "1", {"source": source})
            made.scores["team"] = float(value)
            group.append(made)
        groups.append(group)
    found = summarise(groups, EvaluationConfig(samples=2, k=2))
    assert found["avg@2"] == pytest.approx(0.5)
    assert found["pass@2"] == pytest.approx(2 / 3)
    assert found["by_source"]["gsm8k"]["avg@2"] == 0.75
    assert found["by_source"]["aime"] == {
        "avg@2": 0.0, "avg@2_margin": None, "pass@2": 0.0, "pass@2_margin": None, "num_tasks": 1,
    }  # fmt: skip


def test_one_agents_own_score_counts_where_it_is_named():
    group = []
    for scores in ({"a": 2.0, "b": -2.0}, {"a": -1.0, "b": 1.0}):
        group.append(episode(len(group), [], {}))
        group[-1].scores = scores
    options = {"samples": 2, "k": 2}
    assert summarise([group], EvaluationConfig(**options))["avg@2"] == 0.0
    found = summarise([group], EvaluationConfig(agent="a", **options))
    assert (found["avg@2"], found["pass@2"]) == (0.5, 1.0)
    group[1].scores = {"team": 1.0}  # the team's, where it has none of its own
    assert summarise([group], EvaluationConfig(agent="a", **options))["avg@2"] == 1.5


def test_a_headline_counts_where_nobody_is_paid_for_it():
    group = []
    for judged, scores in ((1.0, {}), (0.0, {"team": 1.0}), (None, {}), (None, {"team": 1.0})):
        group.append(episode(len(group), [], {}))
        group[-1].judged_score, group[-1].scores = judged, scores
    assert summarise([group], EvaluationConfig(samples=4, k=1))["avg@4"] == 0.5


def test_held_out_takes_some_of_every_source():
    tasks = [Task(f"{s}{i}", "?", "1", {"source": s}) for i in range(5) for s in ("a", "b")]
    assert [t.id for t in held_out(tasks, per_source=2)] == ["a0", "b0", "a1", "b1"]


def voting(*answers: tuple[str, float], cut: int = -1) -> dict:
    group = []
    for number, (answer, score) in enumerate(answers):
        group.append(episode(number, [], {}))
        group[-1].answer, group[-1].scores = answer, {"team": score}
        group[-1].is_truncated = number == cut
    return summarise([group], EvaluationConfig(samples=len(answers), k=1))


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ([("\\boxed{1/2}", 1.0), ("\\boxed{3}", 0.0), ("So \\boxed{0.5}", 1.0)], 1.0),
        ([("\\boxed{2}", 1.0), ("\\boxed{3}", 0.0), ("\\boxed{3}", 0.0)], 0.0),
        ([("\\boxed{2}", 1.0), ("\\boxed{3}", 0.0)], 1.0),  # a tie: the first
        ([("none", 0.0), ("<answer>Paris</answer>", 1.0), ("<answer>paris</answer>", 1.0)], 1.0),
    ],
)
def test_maj_is_whether_the_most_frequent_answer_is_right(answers, right):
    assert voting(*answers)[f"maj@{len(answers)}"] == right


def test_a_cut_attempt_has_no_vote_and_a_task_without_answers_no_majority():
    answers = [("\\boxed{3}", 0.0), ("\\boxed{2}", 1.0)]
    assert voting(*answers)["maj@2"] == 0.0
    assert voting(*answers, cut=0)["maj@2"] == 1.0
    assert "maj@2" not in voting(("moved", 1.0), ("stayed", 0.0))
    assert "maj@1" not in voting(("\\boxed{3}", 0.0))


def test_measures_of_an_area_are_means_over_tasks_that_have_them():
    groups = []
    for number, attempts in enumerate([[{"tree/best": 1.0}, {"tree/best": 0.0}], [{}, {}],
                                       [{"tree/best": 1.0}, {"tree/best": 1.0}]]):  # fmt: skip
        group = [episode(attempt, [], {}) for attempt in range(2)]
        for one, metrics in zip(group, attempts, strict=True):
            one.task = Task(f"t{number}", "?", "1", {"source": "s"})
            one.metrics |= metrics
        groups.append(group)
    summary = summarise(groups, EvaluationConfig(samples=2, k=2))
    assert summary["tree"] == {"best": 0.75}
    assert "submission" not in summary
