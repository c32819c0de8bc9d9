"""Bounds on scores of episodes that a metric measures as bad."""

import asyncio

import pytest
from pydantic import ValidationError

from rolecall.core.interfaces.environment import World
from rolecall.rewards.coach.rubric_section import Cap
from tests.rewards.coach.server import coach_of, eight, play, said, serving

pytestmark = pytest.mark.slow

LOW = Cap(metric="accuracy", below=0.6, most=4)


def measured(value: float | None = 0.5, **options):
    episode = said("a", "b", agents=("one", "two"))
    if value is not None:
        episode.metrics["accuracy"] = value
    server, _ = play(eight, episode, **options)
    return server, episode.turns


def test_a_bad_metric_bounds_the_scores_of_the_agents_that_a_cap_names():
    _, [one, two] = measured(caps=(Cap(metric="accuracy", below=0.6, agents={"two"}, most=4),))
    assert (one.coach.note.score, one.coach.note.cap) == (8, "")
    note = two.coach.note
    assert (note.score, note.uncapped) == (4, 8)
    assert note.cap == "accuracy 0.5 is below 0.6"
    assert [turn.rewards["coach"] for turn in (one, two)] == [0.8, 0.4]


@pytest.mark.parametrize(
    ("caps", "value", "score"),
    [
        ((LOW,), 0.6, 8), ((LOW,), 0.59, 4),
        ((Cap(metric="accuracy", above=0.25, most=6),), 0.3, 6),
        ((Cap(metric="accuracy", above=0.25, most=6),), 0.25, 8),
        ((LOW, Cap(metric="accuracy", below=0.55, most=3)), 0.5, 3),
        ((Cap(metric="accuracy", below=0.6, most=9),), 0.5, 8),
        ((Cap(metric="score", below=1.1, most=2),), 0.5, 2),
        ((Cap(metric="accuracy", below=0.6, most=2, missing="skip"),), None, 8),
        ((Cap(metric="accuracy", below=0.6, most=2, missing="cap"),), None, 2),
    ],
)  # fmt: skip
def test_the_lowest_bound_that_holds_counts(caps, value, score):
    _, turns = measured(value, caps=caps)
    assert [turn.coach.note.score for turn in turns] == [score, score]


def test_the_score_that_counts_is_bounded_where_there_are_two():
    _, [turn, _] = measured(caps=(LOW,), hindsight=True)
    assert (turn.coach.note.score, turn.coach.note.final.score) == (8, 4)


def test_a_metric_that_no_episode_has_is_named_before_anything_is_asked():
    told = "rewards.coach.caps.0.metric: an episode has no 'acc'; it has accuracy, score"
    with pytest.raises(ValueError, match=told):
        measured(caps=(Cap(metric="acc", below=0.6, most=4),))


@pytest.mark.parametrize(
    ("cap", "told"),
    [
        ({"most": 4}, "write either below or above, for the metric 'm'"),
        ({"most": 4, "below": 1, "above": 0}, "write either below or above"),
        ({"most": -1, "below": 1}, "greater than or equal to 0"),
    ],
)
def test_a_bound_that_says_nothing_is_refused(cap, told):
    with pytest.raises(ValidationError, match=told):
        Cap.model_validate({"metric": "m"} | cap)


@pytest.mark.parametrize(("scale", "most"), [(10, 10), (1, 4)])
def test_a_bound_above_the_scale_is_refused(scale, most):
    cap = Cap(metric="score", below=0.5, most=most)
    with pytest.raises(ValueError, match=f"caps.0.most: {most} bounds nothing"):
        measured(caps=(cap,), scale=scale)


def test_the_cache_holds_the_coachs_own_score_which_other_bounds_lower_anew(tmp_path):
    measured(caps=(LOW,), cache=str(tmp_path))
    server, turns = measured(cache=str(tmp_path))
    assert server.asked == []
    assert [turn.coach.note.score for turn in turns] == [8, 8]
    server, turns = measured(cache=str(tmp_path), caps=(LOW.model_copy(update={"most": 2.0}),))
    assert server.asked == []
    assert [turn.coach.note.score for turn in turns] == [2, 2]


def test_a_replayed_action_keeps_the_coachs_own_score_until_its_episode_ends():
    before = measured(caps=(LOW,))[1][0]
    again = said("a", "b", agents=("one", "two"))
    again.metrics["accuracy"] = 0.9

    async def go():
        async with serving(eight) as server:
            coach = coach_of(server, caps=(LOW,), when="after_action")
            follower = coach.follow(again, World())
            for turn in again.turns:
                await follower.on_action(turn, before if turn.agent == "one" else None)
            await follower(again, World())
            return [asked.block("action") for asked in server.asked]

    assert asyncio.run(go()) == ["b"]
    assert again.turns[0].coach.note.cached
    assert [turn.coach.note.score for turn in again.turns] == [8, 8]
