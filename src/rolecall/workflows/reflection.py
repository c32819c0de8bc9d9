"""Workflows in which a teacher corrects a student: data for sft, as in STeP (2505.20023).

The teacher's reflection and right step become the student's own words after its wrong ones, which
are shown and never imitated. Collect rows with them, and train the student on those with `sft`. In
an evaluation nobody helps: the student acts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import PositiveInt

from rolecall.agents.agent import Said
from rolecall.agents.corrections import extend_answer, write_next
from rolecall.agents.parsers import parse_boxed, parse_choice
from rolecall.agents.team import Member, Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.acting import act, open_conversation
from rolecall.workflows.base import workflow

JUDGE = (
    "Is the newest step right? End with <verify>approve</verify> if it is, and with "
    "<verify>reject</verify> if it is not."
)
CORRECT = (
    "The newest step is wrong. Write what the one who took it should say next, in the first "
    "person: what was wrong with it, and then the right step, in the form that the task asks for."
)

_verdict = parse_choice("verify", "approve", "reject")


@dataclass(frozen=True, slots=True)
class Teaching:
    """Judges the newest step, and asks the teacher to correct a wrong one."""

    critic: Member
    teacher: Member
    judge: str  # words that ask for a verdict
    correct: str  # words that ask for a correction

    async def __call__(self, *said: Said) -> Turn | None:
        """Return the teacher's reflection and right step; None if the newest step is not rejected.

        A verdict that cannot be read rejects nothing, and words that were cut correct nothing.
        """
        verdict = await self.critic(*said, *_nonempty(self.judge))
        if _verdict(verdict) != "reject":
            return None
        others = [] if self.critic.agent is self.teacher.agent else [verdict]
        advice = await self.teacher(*said, *others, *_nonempty(self.correct))
        return advice if advice.finish != "length" and advice.visible.strip() else None


def _nonempty(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


@workflow(parsers={"student": parse_boxed})
async def reflection(
    team: Team,
    task: Task,
    world: World,
    checker: str | None = None,
    judge: str = JUDGE,
    correct: str = CORRECT,
) -> Turn:
    """Let a student answer, and a teacher go on with the answer if it is wrong.

    checker: agent that judges the answers; by default the teacher does.
    judge: words that ask for the verdict `<verify>approve</verify>` or `<verify>reject</verify>`.
    correct: words that ask the teacher for a reflection and the right answer.
    """
    answer = await team.student(task.prompt)
    if not team.tries_out:
        return answer
    critic = team.teacher if checker is None else team[checker]
    teach = Teaching(critic, team.teacher, judge, correct)
    advice = await teach(task.prompt, answer)
    return answer if advice is None else extend_answer(team.student, answer, advice)


@workflow
async def reflection_steps(
    team: Team,
    task: Task,
    world: World,
    max_turns: PositiveInt = 8,
    corrections: PositiveInt = 4,
    checker: str | None = None,
    judge: str = JUDGE,
    correct: str = CORRECT,
) -> Turn:
    """Let a student act in a world, as in `multi_turn`. After a wrong action, of which the student
    has seen what came, its next action is the teacher's.

    max_turns: most actions, the teacher's among them.
    corrections: most actions that the teacher corrects.
    checker: agent that judges the actions; by default the teacher does.
    judge: words that ask for the verdict `<verify>approve</verify>` or `<verify>reject</verify>`.
    correct: words that ask the teacher for a reflection and the right action.
    """
    critic = team.teacher if checker is None else team[checker]
    teach = Teaching(critic, team.teacher, judge, correct)
    messages = open_conversation(team, task)
    wrong, advice = None, None
    budget = corrections if team.tries_out else 0
    for number in range(max_turns):
        if wrong is not None and advice is not None:
            action = write_next(team.student, wrong, advice, *messages)
        else:
            action = await team.student(*messages)
        is_sampled, wrong, advice = advice is None, None, None
        seen = await act(world, "student", action)
        if seen.done or number == max_turns - 1:
            break
        messages += [action, seen]
        team.saw(seen)
        if is_sampled and budget:
            advice = await teach(*messages)
            if advice is not None:
                wrong, budget = action, budget - 1
    return action
