"""Many actions against a server that fails, hangs, limits and babbles at stated rates."""

import asyncio
import random

import pytest

from rolecall.core.interfaces.environment import World
from tests.rewards.coach.server import (
    HANG,
    HANG_UP,
    Answer,
    Asked,
    Refused,
    Said,
    coach_of,
    said,
    serving,
)

pytestmark = pytest.mark.slow


def truth(text: str) -> float:
    """The server's score of an action."""
    return random.Random(text).randrange(101) / 10


class Storm:
    """Half of the answers are trouble; one action in twenty never gets a readable one."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def __call__(self, asked: Asked) -> Answer:
        text = asked.block("action")
        roll = self.dice.random()
        if text.endswith("7") and text[-2] in "05":
            return asked.json(99)
        if roll < 0.10:
            return self.dice.choice([Refused(500), Refused(502, text="<html>"), HANG_UP])
        if roll < 0.15:
            return HANG
        if roll < 0.30:
            return Refused(429, {"Retry-After": "0.02"})
        if roll < 0.50:
            wrong = [
                Said(""),
                Said("10 out of 10"),
                Said("PROCESS_SCORE: 10"),
                Said('{"process_score": 10, "reasoning": "", "request": "0"}'),
                Said(asked.json(10).text, truncated=True),
                Refused(200, text="{}"),
                Refused(200, text="null"),
            ]
            return self.dice.choice(wrong)
        return asked.json(truth(text))


async def weather(number: int, *, seed: int):
    """-> (episode, server) after `number` actions were scored in the storm."""
    async with serving(Storm(seed)) as server:
        engine = {"request_s": 0.5, "concurrency": 32}
        coach = coach_of(server, engine=engine, answers={"max_error_rate": 1.0})
        episode = said(*(f"action {place:04d}" for place in range(number)))
        await coach(episode, World())
        return episode, server


def test_in_a_storm_nothing_is_lost_and_no_score_is_made_up():
    episode, server = asyncio.run(weather(100, seed=1))
    scored = [turn for turn in episode.turns if turn.coach.note]
    failed = [turn for turn in episode.turns if turn.coach.error]
    assert len(scored) + len(failed) == 100
    assert not set(scored) & set(failed)
    for turn in scored:
        assert turn.coach.note.score == truth(turn.text)
    for turn in failed:
        assert not turn.rewards
        assert not turn.trained
    assert {"action 0007", "action 0057"} <= {turn.text for turn in failed}
    assert len(scored) >= 85
    assert episode.metrics["count/coach_errors"] == len(failed)
    assert len(server.asked) >= episode.metrics["count/coach_calls"] > 100
