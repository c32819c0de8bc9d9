"""A solver tries again with the lessons of a memory agent: who reads what, and who is paid what."""

from __future__ import annotations

import pytest

from rolecall.core.types import Episode
from rolecall.tools.functions import tool
from rolecall.tools.use import Stateless, ToolUse
from rolecall.workflows.experience import experience
from tests.workflows.teams import play_team, shown, turns_of

RIGHT, WRONG = "It is \\boxed{7}.", "It is \\boxed{8}."
LESSONS = ["Count twice.", "Check the sum."]
CODE = "```python\nprint(3 + 4)\n```"


def played(folder, *answers: str, **options) -> Episode:
    says = {"solver": list(answers), "memory": LESSONS}
    return play_team(folder, experience, says, options={"rounds": len(answers)} | options)


def paid(episode: Episode, agent: str) -> list[float | None]:
    return [turn.paid for turn in turns_of(episode, agent)]


def test_attempts_and_lessons_alternate_and_the_last_attempt_is_the_answer(model_folder):
    episode = played(model_folder, WRONG, WRONG, RIGHT)
    agents = [turn.agent for turn in episode.turns]
    assert agents == ["solver", "memory", "solver", "memory", "solver"]
    assert episode.answer == RIGHT
    assert episode.scores == {"team": 1.0}


@pytest.mark.parametrize(
    ("answers", "attempts", "propagated", "delta"),
    [
        ((WRONG, RIGHT, RIGHT), [0, 1, 1], [1, 1], [1, 0]),
        ((RIGHT, WRONG, RIGHT), [1, 0, 1], [0, 1], [0, 1]),
        ((WRONG, WRONG, WRONG), [0, 0, 0], [0, 0], [0, 0]),
        ((RIGHT,), [1], [], []),
    ],
)
def test_attempts_are_paid_by_themselves_and_lessons_what_the_next_attempt_is_worth(
    model_folder, answers, attempts, propagated, delta
):
    episode = played(model_folder, *answers)
    assert paid(episode, "solver") == attempts
    assert paid(episode, "memory") == propagated
    assert paid(played(model_folder, *answers, memory_reward="delta"), "memory") == delta


def test_a_solver_reads_the_newest_lessons_alone_and_the_memory_the_attempt_and_its_own(
    model_folder,
):
    episode = played(model_folder, WRONG, WRONG, RIGHT, remember="What now?")
    first, second, third = turns_of(episode, "solver")
    assert shown(first) == "What is 3+4?"
    assert shown(second) == "What is 3+4?\n\n[memory]\nCount twice."
    assert shown(third) == "What is 3+4?\n\n[memory]\nCheck the sum."
    early, late = turns_of(episode, "memory")
    assert shown(early) == f"What is 3+4?\n\n[solver]\n{WRONG}\n\nWhat now?"
    assert [(message.role, message.content) for message in late.messages] == [
        ("user", "What is 3+4?"),
        ("assistant", "Count twice."),
        ("user", f"[solver]\n{WRONG}\n\nWhat now?"),
    ]


@tool
async def python(code: str) -> str:
    """Run code."""
    return "seven"


def test_the_memory_reads_what_the_solvers_tools_answered_and_each_call_is_paid(model_folder):
    says = {"solver": [CODE, WRONG, RIGHT], "memory": LESSONS}
    tools = {"solver": {"tools": ToolUse((Stateless(python),), format="code")}}
    episode = play_team(model_folder, experience, says, options={"rounds": 2}, agents=tools)
    assert paid(episode, "solver") == [0, 0, 1]
    assert paid(episode, "memory") == [1]
    [lessons] = turns_of(episode, "memory")
    seen = shown(lessons)
    assert seen.index(CODE) < seen.index("[tool results]") < seen.index("seven")
    assert seen.index("seven") < seen.index(WRONG)
