"""Lets an environment speak for the team, and makes demonstrations of what it says.

The team's own workflow is played, so what is imitated follows the very prompts that it will see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from rolecall.agents.agent import Agent, Policy
from rolecall.core.interfaces.demonstrator import Demonstrator, Scene
from rolecall.core.interfaces.engine import Answer, Completion, Question, Request, TextEngine
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Floats, Group, Ids, Task
from rolecall.demonstrations.offline_data import Said, make_episode
from rolecall.rollout.episodes import PlaySettings, RolloutContext, play
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.progress import activity

AT_ONCE = 32  # episodes under way: worlds may wait for a sandbox
Tools = Mapping[str, frozenset[str]]  # names of the tools of each agent


def write_demonstrations(
    context: RolloutContext, tasks: Sequence[Task], number: int, *, tools: Tools, seed: int
) -> list[Group]:
    """Return `number` demonstrations, each a group of one episode of one turn.

    The tasks are played in their order until there are enough. Raises ValueError where the
    environment cannot speak for the team, where a demonstration without a mistake is not right,
    and where the tasks are too few.
    """

    async def everything() -> list[Group]:
        asyncio.get_running_loop().set_task_factory(task_factory)
        groups: list[Group] = []
        with activity("writing demonstrations", total=number) as now:
            start = 0
            while len(groups) < number and start < len(tasks):
                some = tasks[start : start + min(AT_ONCE, number - len(groups))]
                start += len(some)
                played = await asyncio.gather(
                    *(_demonstrate(context, task, tools=tools, seed=seed) for task in some)
                )
                groups += [group for one in played for group in one]
                now.done = min(number, len(groups))
        return groups[:number]

    groups = asyncio.run(everything())
    if len(groups) < number:
        raise ValueError(
            f"{len(tasks)} tasks give {len(groups)} demonstrations instead of {number}"
        )
    return groups


async def _demonstrate(
    context: RolloutContext, task: Task, *, tools: Tools, seed: int
) -> list[Group]:
    """Play one task, and return what is imitated of it."""
    player = _Player(context, task, tools, Random(derive_seed(seed, task.id)))
    speakers = {
        name: replace(agent, policy=Policy(name, None, player), cross_policy=None)
        for name, agent in context.agents.items()
    }
    spoken_for = replace(
        context, agents=speakers, rewards={}, player=None, manner=PlaySettings(tries_out=False)
    )
    episode = await play(spoken_for, task, step="demonstration")
    if episode.error:
        raise ValueError(f"the demonstration of task {task.id} failed: {episode.error}")
    if not player.mistakes and (episode.headline or 0.0) < 1.0:
        raise ValueError(
            f"the demonstration of task {task.id} scores {episode.headline or 0.0:g} instead of 1"
        )
    groups = []
    for number, turn in enumerate(episode.turns):
        if turn.chosen and turn.trained and turn.id not in player.mistakes:
            name = f"{task.id}-{number}"
            answer = Said(list(turn.messages), turn.text)
            row = make_episode(
                [answer], context.agents[turn.agent], place=f"demonstration {name}", name=name
            )
            groups.append([row])
    return groups


class _Player(TextEngine):
    """Says what the environment demonstrates, for every agent of one episode."""

    def __init__(self, context: RolloutContext, task: Task, tools: Tools, random: Random) -> None:
        self.context, self.task, self.tools, self.random = context, task, tools, random
        self.mistakes: set[str] = set()  # ids of turns that nobody imitates
        self.transcript: list[tuple[str, str]] = []

    async def answer(self, question: Question) -> list[Answer]:
        """Answer with a line of the environment; the policy is called as its agent."""
        agent = self.context.agents[question.policy]
        environment = self.context.environment
        assert isinstance(environment, Demonstrator), "checked with the config"
        line = environment.demonstrate(self._set_scene(agent, question))
        if not line.imitated:
            self.mistakes.add(question.id)
        self.transcript.append((agent.name, line.text))
        return [Answer(line.text, "stop")] * question.n

    async def generate(self, request: Request) -> list[Completion]:
        raise NotImplementedError("a demonstration has messages and no tokens")

    async def cancel(self, request_id: str) -> None:
        return None

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        raise NotImplementedError("a demonstration has messages and no tokens")

    def _set_scene(self, agent: Agent, question: Question) -> Scene:
        users = [message.content for message in question.messages if message.role == "user"]
        return Scene(
            workflow=self.context.workflow.name,
            role=agent.role,
            roles=frozenset(other.role for other in self.context.agents.values()),
            tools=self.tools.get(agent.name, frozenset()),
            task=self.task,
            question=users[0],
            shown="\n".join(message.content for message in question.messages),
            transcript=tuple(self.transcript),
            own=tuple(text for name, text in self.transcript if name == agent.name),
            random=self.random,
        )
