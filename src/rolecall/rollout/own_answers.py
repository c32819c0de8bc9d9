"""Lets policies answer the prompts of demonstrations themselves, for losses that compare the two.

It consumes groups of a data set, produces the same groups with one more attempt each, and is
unblocked by the engine's last answer.
"""

from __future__ import annotations

import asyncio

from rolecall.agents.spoken_text import spoken_text
from rolecall.core.interfaces.engine import Request
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Group, Turn
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime import call_tree


async def add_own_answers(
    context: RolloutContext, groups: list[Group], *, step: int
) -> list[Group]:
    """Add to each group of one demonstration an attempt of the policy's own, which is worth 0.

    Every turn of it answers the prompt of a turn that is imitated: the conversation before it is
    that of the demonstration. The same step gives the same answers.
    """
    places = call_tree.Semaphore(context.concurrency)

    async def one(group: Group) -> Group:
        with call_tree.enter_scope((), barrier=context.barrier):
            async with places:
                return [*group, await _attempt(context, group[0], step)]

    async with asyncio.TaskGroup() as together:
        tasks = [together.create_task(one(group)) for group in groups]
    return [task.result() for task in tasks]


async def _attempt(context: RolloutContext, shown: Episode, step: int) -> Episode:
    task, number = shown.task, shown.attempt + 1
    name, seed = f"{step}:{task.id}:{number}", derive_seed(context.seed, step, task.id, "own")
    own = Episode(name, task, number, seed, rewards={"team": 0.0}, step=step)
    for turn in shown.turns:
        if turn.trained:
            own.turns.append(await _said(context, turn, own))
    own.answer = own.turns[-1].text
    return own


async def _said(context: RolloutContext, shown: Turn, own: Episode) -> Turn:
    """Sample the policy's own answer to the prompt of a turn. Its temperature is that of the loss,
    1.
    """
    agent = context.agents[shown.agent]
    tokenizer, prompt = agent.policy.tokenizer, shown.ids[0]
    assert tokenizer is not None, "rows are of agents whose policies are trained"
    name = f"{own.id}/{'.'.join(map(str, shown.path))}"
    request = Request(
        id=name,
        policy=agent.policy.name,
        prompt=prompt,
        sampling=agent.sampling,
        seed=derive_seed(own.seed, shown.path),
        order=(own.id, own.attempt, shown.path),
        episode=own.id,
    )
    [completion] = await agent.policy.engine.generate(request)
    return Turn(
        id=name,
        task=own.task.id,
        episode=own.id,
        agent=shown.agent,
        policy=shown.policy,
        path=shown.path,
        index=shown.index,
        messages=shown.messages,
        prompt=prompt,
        tokens=completion.tokens,
        versions=completion.versions,
        text=spoken_text(tokenizer, prompt, completion.tokens),
        finish=completion.finish,
    )
