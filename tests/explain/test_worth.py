"""What a single agent gets for a team's budget, and when a team is worth it."""

from __future__ import annotations

import io
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from rolecall.explain.worth import (
    LEAST,
    Arm,
    Attempt,
    Choice,
    Verdict,
    Worth,
    choose_best,
    choose_first,
    choose_likeliest,
    choose_majority,
    compare_arms,
)
from rolecall.explain.worth_table import print_worth, verdict_sentence
from rolecall.monitor.comparison import Measure
from rolecall.runtime.consoles import PlainConsole


def attempt(score=0.0, *, sampled=10, serial=None, answer=None, likelihood=None, **prices):
    price = {"own_price": float(sampled), "shared_price": 0.0} | prices
    serial = sampled if serial is None else serial
    return Attempt(score, sampled, 4, serial, answer=answer, likelihood=likelihood, **price)


def chance_arm(name, kind, rate, *, tasks=200, answers=8, sampled=10, seed=0):
    """Each attempt is right with the rate; wrong ones agree with no other."""
    random = Random(f"{name} {seed}")
    groups = {}
    for task in range(tasks):
        scores = [float(random.random() < rate) for _ in range(answers)]
        groups[str(task)] = [
            attempt(score, sampled=sampled, answer=0 if score else number + 1)
            for number, score in enumerate(scores)
        ]
    return Arm(name, kind, groups)


def choice_for(result: Worth, rule: str, budget: str = "tokens") -> Choice:
    [choice] = [one for one in result.choices if (one.rule, one.budget) == (rule, budget)]
    return choice


def test_rules_choose_one_answer():
    answers = [
        attempt(0.0, answer=None, likelihood=-0.5),
        attempt(0.2, answer=1, likelihood=-0.2),
        attempt(0.4, answer=2, likelihood=-0.9),
        attempt(0.6, answer=2, likelihood=-0.1),
    ]
    assert choose_first(answers) == 0.0
    assert choose_majority(answers) == 0.4
    assert choose_majority(answers[:3]) == 0.2  # the first of equal ones
    assert choose_majority(answers[:1]) == 0.0  # nobody votes
    assert choose_likeliest(answers) == 0.6
    assert choose_best(answers[:3]) == 0.4


def test_a_mixture_of_two_numbers_of_answers_spends_exactly_the_budget():
    team = Arm("team", "team", {"a": [attempt(1.0, sampled=25)]})
    alone = Arm("one", "single", {"a": [attempt(s, answer=n) for n, s in enumerate([0, 0, 1, 1])]})
    result = compare_arms(team, [alone], source="run")
    best = choice_for(result, "perfect judge")
    assert best.number == 2.5
    # Two answers: pairs (0, 0) and (1, 1); three answers: (0, 0, 1) alone.
    assert best.score.mean == 0.5 * fmean([0, 1]) + 0.5 * 1
    assert not best.is_over
    assert not best.is_cut
    assert choice_for(result, "one answer").number == 1.0


def test_each_budget_counts_what_it_is_about():
    team = Arm(
        "team", "team", {"a": [attempt(sampled=30, serial=12, own_price=7.0, shared_price=3.0)]}
    )
    group = [attempt(sampled=10, serial=n, own_price=2.0, shared_price=3.0) for n in (9, 11)]
    alone = Arm("one", "single", {"a": group * 3})
    assert alone.spend("tokens", 3) == 30
    assert alone.spend("latency", 1) == 10
    assert alone.spend("latency", 2) == 11  # they are sampled side by side
    assert alone.spend("price", 3) == 3.0 + 3 * 2.0  # the prompt is paid once
    result = compare_arms(team, [alone], source="run")
    numbers = {b: choice_for(result, "perfect judge", b).number for b in ("tokens", "price")}
    assert numbers == {"tokens": 3.0, "price": 3.5}
    latency = choice_for(result, "perfect judge", "latency")
    assert latency.number == 6
    assert latency.is_cut


def test_an_answer_that_costs_more_than_the_team_is_marked():
    team = Arm("team", "team", {"a": [attempt(1.0, sampled=5)]})
    alone = Arm("one", "single", {"a": [attempt(1.0)] * 4})
    result = compare_arms(team, [alone], source="run")
    assert all(
        one.is_over and one.number == 1.0 for one in result.choices if one.budget == "tokens"
    )


def test_rules_that_lack_what_they_read_are_left_out():
    team = Arm("team", "team", {"a": [attempt(1.0)]})
    alone = Arm("one", "single", {"a": [attempt(1.0)] * 2})
    result = compare_arms(team, [alone], source="run")
    assert {one.rule for one in result.choices} == {"one answer", "perfect judge"}


def test_gains_are_taken_task_by_task():
    team = Arm("team", "team", {"a": [attempt(1.0)], "b": [attempt(0.5)], "c": [attempt(1.0)]})
    other = Arm("other", "variant", {"a": [attempt(0.5)], "b": [attempt(0.0)]})
    [variant] = compare_arms(team, [other], source="run").variants
    assert variant.gain == Measure(0.5, 0.0)
    assert variant.score.mean == 0.25
    with pytest.raises(ValueError, match="stranger shares no task"):
        compare_arms(team, [Arm("stranger", "variant", {"d": [attempt()]})], source="run")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("team_rate", "single_rate", "expected"),
    [(0.9, 0.3, "yes"), (0.6, 0.6, "no"), (0.5, 0.9, "no")],
)
def test_the_verdict_is_that_of_the_worlds_own_rates(team_rate, single_rate, expected, seed):
    """With the same tokens a single agent has one answer here, so its rate is its score."""
    team = chance_arm("team", "team", team_rate, tasks=1000, seed=seed)
    alone = chance_arm("one", "single", single_rate, tasks=1000, seed=seed)
    assert compare_arms(team, [alone], source="run").verdict().is_worth == expected


def test_few_tasks_decide_nothing_and_the_sentence_says_how_many_would():
    undecided = []
    for seed in range(50):
        team = chance_arm("team", "team", 0.6, tasks=12, seed=seed)
        alone = chance_arm("one", "single", 0.6, tasks=12, seed=seed)
        result = compare_arms(team, [alone], source="run")
        if result.verdict().is_worth == "undecided":
            undecided.append(verdict_sentence(result))
    assert len(undecided) >= 40
    assert all("evaluation.tasks=" in sentence for sentence in undecided)


def test_equal_teams_are_seldom_called_worth_it():
    """The rate of wrong verdicts where team and single agents are the same."""
    wrong = 0
    for seed in range(200):
        team = chance_arm("team", "team", 0.5, tasks=60, answers=2, seed=seed)
        arms = [chance_arm(f"one {n}", "single", 0.5, tasks=60, answers=2, seed=seed) for n in "ab"]
        wrong += compare_arms(team, arms, source="run").verdict().is_worth == "yes"
    assert wrong <= 10


def test_a_judge_that_knows_the_answers_decides_nothing():
    team = chance_arm("team", "team", 0.9, sampled=80)
    alone = chance_arm("one", "single", 0.5)
    result = compare_arms(team, [alone], source="run")
    rival = result.verdict().rival
    assert choice_for(result, "perfect judge").gain.mean < LEAST
    assert rival is not None
    assert rival.rule == "majority"
    assert result.verdict().is_worth == "no"


def test_a_team_whose_agents_cannot_play_alone_is_not_praised_without_a_word():
    team = chance_arm("team", "team", 0.9)
    silent = chance_arm("judge in a silent team", "single", 0.3)
    warning = "No agent could be played alone"
    result = compare_arms(team, [silent], source="run")
    assert result.verdict().is_worth == "yes"
    assert warning in verdict_sentence(result)
    alone = chance_arm("judge alone", "single", 0.3)
    assert warning not in verdict_sentence(compare_arms(team, [silent, alone], source="run"))


def test_without_single_agents_nothing_is_decided():
    team = chance_arm("team", "team", 0.9)
    result = compare_arms(team, [], source="run")
    assert result.verdict() == Verdict("undecided", None)
    assert "nothing is decided" in verdict_sentence(result)


def test_the_page_fits_80_columns():
    team = chance_arm("team", "team", 0.9, sampled=20)
    others = [
        chance_arm("without verifier", "variant", 0.7),
        chance_arm("one agent that imitates the team", "single", 0.5),
    ]
    result = compare_arms(team, others, source="runs/math")
    result.not_possible = {"one set of weights for all": "their bases differ"}
    page = io.StringIO()
    print_worth(result, PlainConsole(file=page, width=80))
    text = page.getvalue()
    tables = [line for line in text.splitlines() if "+-" in line and " the team " not in line]
    assert all(len(line.rstrip()) <= 80 for line in tables)
    assert "runs/math: the team scores 0.9" in text
    assert "At equal tokens the team is " in text
    assert "At equal latency" in text
    assert "not possible: one set of weights for all (their bases differ)" in text


def test_what_costs_more_than_the_team_cannot_show_that_it_is_not_worth_it():
    team = chance_arm("team", "team", 0.3, sampled=5)
    dear = chance_arm("one", "single", 0.9)
    result = compare_arms(team, [dear], source="run")
    assert result.verdict().is_worth == "undecided"
    assert "one answer takes more than the team" in verdict_sentence(result)
    page = io.StringIO()
    print_worth(result, PlainConsole(file=page, width=80))
    assert ">1: one answer takes more tokens" in page.getvalue()
    cheap = chance_arm("other", "single", 0.8, sampled=5)
    verdict = compare_arms(team, [dear, cheap], source="run").verdict()
    assert verdict.is_worth == "no"
    assert verdict.rival is not None
    assert verdict.rival.arm == "other"


def test_one_answer_is_not_chosen_from():
    team = Arm("team", "team", {"a": [attempt(1.0)]})
    alone = Arm("one", "single", {"a": [attempt(1.0, answer=1, likelihood=-1.0)] * 2})
    result = compare_arms(team, [alone], source="run")
    assert [one.rule for one in result.choices if one.budget == "tokens"] == ["one answer"]


@pytest.mark.parametrize(
    ("tasks", "score", "expected"),
    [(1, 1.0, "undecided"), (2, 0.0, "undecided"), (200, 0.0, "no"), (200, 1.0, "yes")],
)
def test_few_tasks_that_are_all_alike_decide_nothing(tasks, score, expected):
    team = Arm("team", "team", {str(n): [attempt(score)] for n in range(tasks)})
    alone = Arm("one", "single", {str(n): [attempt(0.0)] * 2 for n in range(tasks)})
    assert compare_arms(team, [alone], source="run").verdict().is_worth == expected


@pytest.mark.parametrize("rate", [0.5, 0.52, 0.6])
def test_as_many_tasks_as_are_named_decide_where_gains_stay(rate):
    team = chance_arm("team", "team", rate, tasks=60, answers=1)
    arms = [chance_arm(n, "single", 0.5, tasks=60, answers=1) for n in "abcdef"]
    result = compare_arms(team, arms, source="run")
    assert result.verdict().is_worth == "undecided"
    number = result.tasks_to_decide()
    assert number is not None
    assert number > 60
    result.num_sources = 3
    assert f"evaluation.tasks={-(-number // 3)})" in verdict_sentence(result)
    for more, is_decided in ((0.95 * number, False), (1.05 * number, True)):
        scale = (60 / more) ** 0.5
        choices = [
            replace(one, error=one.error * scale, num_tasks=round(more)) for one in result.choices
        ]
        verdict = replace(result, choices=choices).verdict()
        assert (verdict.is_worth != "undecided") == is_decided


def test_a_budget_that_is_not_spent_is_mentioned():
    team = chance_arm("team", "team", 0.9, sampled=80)
    alone = chance_arm("one", "single", 0.1, answers=2)
    sentence = verdict_sentence(compare_arms(team, [alone], source="run"))
    assert "worth it" in sentence
    assert "It could answer more often than was sampled" in sentence


def test_arms_that_lack_tasks_are_named():
    team = chance_arm("team", "team", 0.9)
    alone = chance_arm("one", "single", 0.5, tasks=150)
    page = io.StringIO()
    print_worth(compare_arms(team, [alone], source="run"), PlainConsole(file=page, width=80))
    assert "one is compared on 150 of 200 tasks" in page.getvalue()
