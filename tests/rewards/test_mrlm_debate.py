"""MRLM's judge by rules, in numbers; and how it is farmed."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task
from rolecall.rewards.mrlm_debate import Debate, score_argument, score_debate
from tests.toy import episode, turn

TOPIC = "Remote work should spread"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x" * 50, 0.2 * 0.5),
        ("x" * 100, 0.2),
        ("x" * 500, 0.2),
        ("x" * 600, 0.2 * 0.8),
        ("x" * 5000, 0.2 * 0.5),
        ("for example " + "x" * 100, 0.2 + 0.125),
        ("for example, for example " + "x" * 100, 0.2 + 0.125),
        ("thus because therefore " + "x" * 100, 0.2 + 0.25),
        ("A. B! C? " + "x" * 100, 0.2 + 0.15 * 3 / 5),
        ("remote work " + "x" * 100, 0.2 + 0.15 * 2 / 3),
        ("", 0.0),
    ],
)
def test_an_argument(text, expected):
    assert score_argument(text, TOPIC) == pytest.approx(expected)


def test_a_row_of_key_words_is_worth_more_than_any_thought():
    farmed = "thus because statistics for example remote work should. . . . " + "x" * 50
    assert score_argument(farmed, TOPIC) > 0.95


def test_a_debate_is_the_mean_what_neighbours_share_and_key_points():
    texts = ["remote work saves time", "remote work saves money"]
    points = ["Saves commuting time", "Global talent"]
    found = score_debate(texts, [0.4, 0.6], points)
    assert found == pytest.approx(0.6 * 0.5 + 0.2 * 3 / 5 + 0.2 * 0.5)
    assert score_debate(["one"], [0.5], []) == pytest.approx(0.3 + 0.2 + 0.2 * 0.5)


def test_arguments_are_paid_one_by_one_and_the_last_for_the_whole():
    turns = [
        turn(name, path=(place,))
        for place, name in enumerate(["ann", "ben", "ann", "ben", "judge"])
    ]
    for one in turns:
        one.text = f"{one.agent} thinks so because of time"
    found = episode(0, turns, {})
    found.task = Task("x", TOPIC, None, {"key_points": ["time"]})
    assert asyncio.run(Debate()(found, World())) == {}
    each = score_argument(turns[0].text, TOPIC)
    assert turns[0].rewards == {"mrlm": each}
    assert turns[2].rewards == {"mrlm": pytest.approx(0.6 * each + 0.2 + 0.2)}
    assert turns[4].rewards == {}
