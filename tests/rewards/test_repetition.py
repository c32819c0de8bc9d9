"""What turns pay that repeat themselves."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.rewards.repetition import Repetition, repeated_share
from rolecall.workflows.single import single
from tests.workflows.teams import SumWorld, play_team


@pytest.mark.parametrize(
    ("text", "size", "share"),
    [
        ("", 3, 0.0),
        ("a b", 3, 0.0),
        ("a b c", 3, 0.0),
        ("a b a A", 1, 0.5),
        ("a b a b", 2, 1 / 3),
        ("no no no no no", 3, 2 / 3),
        ("the sum is 7\nThe Sum is 7", 3, 1 / 3),
    ],
)
def test_the_share_of_words_said_before(text, size, share):
    assert repeated_share(text, size) == pytest.approx(share)


def test_a_turn_pays_for_its_own_repetition(model_folder):
    episode = play_team(model_folder, single, {"solver": ["well well well \\boxed{7}"]})
    assert asyncio.run(Repetition(1, 2.0)(episode, SumWorld())) == {}
    assert episode.turns[0].rewards == {"repetition": -1.0}


def test_bad_options_are_errors():
    with pytest.raises(ValueError, match="size is at least 1, got 0"):
        Repetition(0)
    with pytest.raises(ValueError, match="factor is at least 0, got -1"):
        Repetition(factor=-1)
