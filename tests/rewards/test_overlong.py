"""What long turns pay."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rolecall.rewards.overlong import Overlong
from rolecall.workflows.single import single
from tests.workflows.teams import SumWorld, play_team


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(1, 0.0), (80, 0.0), (90, -1.0), (100, -2.0), (300, -2.0)]
)
def test_a_turn_pays_more_with_each_token_of_the_buffer(model_folder, tokens, penalty):
    episode = play_team(model_folder, single, {"solver": ["\\boxed{7}"]})
    [turn] = episode.turns
    turn.tokens = np.zeros(tokens, dtype=np.int64)
    assert asyncio.run(Overlong(100, 20, 2.0)(episode, SumWorld())) == {}
    assert turn.rewards["overlong"] == penalty
    assert turn.paid is None


@pytest.mark.parametrize("buffer", [0, 101])
def test_a_buffer_that_is_no_part_of_the_length_is_an_error(buffer):
    with pytest.raises(ValueError, match=rf"buffer is in 1..longest \(100\), got {buffer}"):
        Overlong(100, buffer)
