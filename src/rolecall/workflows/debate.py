"""A workflow in which two sides debate before a judge who does not know who is who.

The sides are drawn, and so is who is called A: neither an agent's name nor its place wins.
"""

from __future__ import annotations

import json

from pydantic import PositiveInt

from rolecall.agents.agent import Quote
from rolecall.agents.parsers import parse_choice
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.asking import ask_again
from rolecall.workflows.base import workflow

PRO, CON = "for", "against"


@workflow(parsers={"judge": parse_choice("winner", "a", "b", "tie")})
async def debate(
    team: Team, task: Task, world: World, rounds: PositiveInt = 3, judge_tries: PositiveInt = 3
) -> str:
    """Let two agents of the role `debater` argue. A judge who names no winner is an error.

    rounds: speeches of each side.
    judge_tries: most times that the judge is asked until it names a winner or a tie.

    -> {"winner": agent or "tie", "side": "for", "against" or "", "called": "a", "b" or "tie",
    "debaters": both agents}
    """
    debaters = team.role("debater")
    if len(debaters) != 2:
        raise ValueError(f"a debate needs two agents of the role debater (it has {len(debaters)})")
    pro, con = team.random("sides").sample(debaters, 2)
    speeches: list[Turn] = []
    for _ in range(rounds):
        for member, side in ((pro, PRO), (con, CON)):
            speeches.append(await member(task.prompt, f"You argue {side} it.", *speeches))
    sides = {pro.agent.name: PRO, con.agent.name: CON}
    called = dict(zip(team.random("names").sample(sorted(sides), 2), "AB", strict=True))
    heard = [Quote(t, f"{called[t.agent]} ({sides[t.agent]}): {t.visible}") for t in speeches]
    verdict = await ask_again(team.judge, task.prompt, *heard, tries=judge_tries)
    if not verdict.valid:
        raise ValueError(f"the judge named no winner in {judge_tries} tries")
    name = str(verdict.tag("winner")).upper()
    winner = next((agent for agent, label in called.items() if label == name), "tie")
    return json.dumps(
        {
            "winner": winner,
            "side": sides.get(winner, ""),
            "called": name.lower(),
            "debaters": sorted(sides),
        }
    )
