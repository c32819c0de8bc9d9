"""Planted faults make the score of a game fall, and alarms come before."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from rolecall.monitor.alarms import Alarm
from rolecall_lab.proofs import alarms
from rolecall_lab.proofs.alarms import Play, play_helper, play_shared, summarise

pytestmark = pytest.mark.slow


def scored(scores: list[float], *, raised_in: int | None = None) -> Play:
    records = [{"score": score} for score in scores]
    alarm = None if raised_in is None else Alarm("lazy", "helper", raised_in, 1, "")
    return Play(records, alarm)


def test_the_fall_is_where_half_of_the_loss_has_come():
    scores = [0.5] * 5 + [0.9] * 5 + [0.1] * 10
    assert scored(scores).fall == 13  # steps 9 to 13 hold three low ones
    assert scored(scores[:10]).fall is None
    assert scored(scores, raised_in=12).is_in_time
    assert not scored(scores, raised_in=13).is_in_time
    assert not scored(scores[:10], raised_in=3).is_in_time
    assert "2 runs: 1 alarms, 1 before the fall by 1 to 1 steps" in summarise(
        [scored(scores, raised_in=12), scored(scores)]
    )


def test_a_helper_that_is_paid_apart_stops_before_the_team_fails():
    play = play_helper("is paid apart", seed=100)
    assert play.is_in_time
    tokens = [record["agent/helper/tokens"] for record in play.records]
    assert np.mean(tokens[-5:]) < 0.5 * np.mean(tokens[:5])
    assert play_helper("works", seed=100).alarm is None


def test_norms_add_up_to_the_gradient_that_moves_a_shared_table():
    play = play_shared("opposed", seed=100)
    assert play.alarm is not None
    for record in play.records:
        whole, *own = (
            record[f"{name}/grad_norm"] for name in ("policy/shared", "agent/writer", "agent/judge")
        )
        assert abs(own[0] - own[1]) - 1e-6 <= whole <= sum(own) + 1e-6


@pytest.mark.evidence
def test_every_claim_holds():
    claims = list(alarms.claims())
    assert len(claims) == 2
    json.dumps([asdict(claim) for claim in claims])
    assert [claim for claim in claims if not claim.ok] == []
