"""A workflow in which a verifier decides whether to search on or to answer.

The protocol of Dr. MAS (2602.08847) for search. By default the last step has no verifier: nobody
would act on its word, so the answerer speaks. `last_step: verdict` is the published protocol, in
which a `no` at the last step leaves the question unanswered.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from rolecall.agents.agent import Said
from rolecall.agents.parsers import parse_choice, parse_tag
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.asking import ask_again
from rolecall.workflows.base import workflow


@workflow(
    parsers={
        "verifier": parse_choice("verify", "yes", "no"),
        "searcher": parse_tag("search"),
        "answerer": parse_tag("answer"),
    },
)  # fmt: skip
async def search_team(
    team: Team,
    task: Task,
    world: World,
    max_steps: PositiveInt = 4,
    history: NonNegativeInt = 4,
    on_unparsable: Literal["no", "yes"] = "no",
    last_step: Literal["answer", "verdict"] = "answer",
) -> Turn:
    """Let a verifier and a searcher collect documents until an answerer can answer.

    The answerer does not see the verifier's words. A query without its tag is requested again.

    max_steps: most steps; each is a verdict and a search, and the last one is the answer.
    history: newest searches that agents see, with what they found.
    on_unparsable: verdict to use if a verdict cannot be read.
    last_step: what the last step begins with: the answer, or a verdict that ends the episode
        without an answer if it is `no`.
    """
    results: list[tuple[Said, Said]] = []
    for step in range(1, max_steps + (last_step == "verdict")):
        context = [message for pair in deque(results, history) for message in pair]
        verdict = await team.verifier(task.prompt, *context, f"Step {step} of {max_steps}.")
        enough = verdict.tag("verify") if verdict.valid else on_unparsable
        if enough == "yes":
            break
        if step == max_steps:
            return verdict
        query = await ask_again(team.searcher, task.prompt, *context, verdict)
        results.append((query, await world.step("searcher", query.visible)))
    context = [message for pair in deque(results, history) for message in pair]
    return await team.answerer(task.prompt, *context)
