"""A second attempt at a maths problem begins with whether the first was right, if that is asked."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.types import Task
from rolecall.environments.math.environment import MathEnvironment
from rolecall.workflows.multi_turn import multi_turn
from tests.workflows.test_teams import play_team, shown

TASK = Task("one", "Compute 2+3.", "5")


def seen(said, **options):
    async def step():
        environment = MathEnvironment(**options)
        world = environment.open(TASK, seed=0)
        try:
            return await world.step("actor", said)
        finally:
            await environment.close()

    return asyncio.run(step())


@pytest.mark.parametrize(
    ("answer", "form", "text", "done"),
    [
        (r"It is \boxed{5}.", "boxed", "Your answer is right.", True),
        (r"It is \boxed{6}.", "boxed", "Your answer is wrong.", False),
        ("It is 5.", "boxed", r"No answer could be read: put it in \boxed{}", False),
        ("It is five.", "last", "No answer could be read: end with a number", False),
        ("", "marked", 'No answer could be read: end with "Answer:"', False),
    ],
)
def test_a_verdict_says_right_wrong_or_unreadable_and_never_the_answer(answer, form, text, done):
    observation = seen(answer, feedback="verdict", answer=form)
    assert observation.text.startswith(text)
    assert observation.done is done
    assert observation.team == float(done)
    assert "5" not in observation.text


def test_without_it_an_agent_reads_its_own_words_as_before():
    observation = seen(r"It is \boxed{5}.")
    assert (observation.text, observation.done) == (r"It is \boxed{5}.", False)


def test_an_agent_tries_again_until_it_is_right(model_folder):
    environment = MathEnvironment(feedback="verdict")
    says = {"actor": [r"\boxed{6}", "five", r"\boxed{5}", "no more"]}
    episode = play_team(
        model_folder, multi_turn, says, world=lambda: environment.open(TASK, seed=0)
    )
    assert [turn.text for turn in episode.turns] == says["actor"][:3]
    assert "Your answer is wrong" in shown(episode.turns[1])
    assert "No answer could be read" in shown(episode.turns[2])
    assert episode.scores == {"team": 1.0}
