"""Agents that are elsewhere see, do and earn what they would in an episode that is played here."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

import pytest

from rolecall.agents.agent import Policy
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import Answer, TextEngine
from rolecall.core.types import Episode
from rolecall.environment_server.session import ActionError, Session
from rolecall.rollout.episodes import play_episode
from rolecall.runs.serve_environments import open_environment
from rolecall.workflows.base import workflow
from tests.environment_server.serving import run

pytestmark = pytest.mark.slow

SAID = {
    "math_alone": ["It is \\boxed{TRUTH}."],
    "math": ["\\boxed{5}", "no, <verify>reject</verify>", "\\boxed{TRUTH}"],
    "debate": ["It is so.", "It is not.", "<winner>b</winner>"],
    "kuhn": ["[check]", "Hm.", "[bet]", "[fold]"],
    "tools": ["<answer>TRUTH</answer>"],
}


class Scripted(TextEngine):
    """Says texts in turn, whoever is asked, and keeps who was shown what."""

    def __init__(self, texts):
        self.texts, self.shown = iter(texts), []

    async def answer(self, question):
        self.shown.append((question.policy, [m.content for m in question.messages]))
        return [Answer(next(self.texts), "stop")]


def write_texts(name: str, episode: Episode) -> list[str]:
    return [text.replace("TRUTH", str(episode.task.answer)) for text in SAID[name]]


def open_episode(name: str, seed: int = 5) -> Session:
    return open_environment(name).open(split="test", index=seed, seed=seed)


async def play_here(name: str) -> tuple[Episode, list]:
    """The same episode, played without a session."""
    context, episode = open_environment(name).context, open_episode(name).episode
    engine = Scripted(write_texts(name, episode))
    context.agents = {
        agent: replace(context.agents[agent], policy=Policy(agent, None, engine))
        for agent in context.agents
    }
    return await play_episode(context, episode), engine.shown


async def play_elsewhere(name: str) -> tuple[Session, list, dict[str, float]]:
    session, shown, rewards = open_episode(name), [], defaultdict(float)
    progress = await session.start()
    for text in write_texts(name, session.episode):
        [call] = progress.calls
        shown.append((call.agent, [message.content for message in call.messages]))
        progress = await session.act(text)
        for agent, reward in progress.rewards.items():
            rewards[agent] += reward
    assert progress.is_done
    return session, shown, rewards


@pytest.mark.parametrize("name", SAID)
def test_a_session_is_the_episode_that_is_played_here(name):
    async def test():
        episode, shown = await play_here(name)
        session, shown_elsewhere, rewards = await play_elsewhere(name)
        assert episode.error is None
        assert shown_elsewhere == shown
        assert session.episode.scores == episode.scores
        own = dict.fromkeys(session.agents, 0.0)
        for turn in episode.turns:
            own[turn.agent] += turn.score
        earned = {agent: episode.outcome(agent) + own[agent] for agent in own}
        assert rewards == pytest.approx(earned)
        assert any(earned.values())

    run(test)


def test_a_tool_is_called_and_its_result_is_shown():
    async def test():
        session = open_episode("tools")
        first = await session.start()
        thing = session.episode.task.info["lookups"][0]
        call = f'<tool_call>{{"name": "lookup", "arguments": {{"name": "{thing}"}}}}</tool_call>'
        after = await session.act(call)
        assert not after.is_done
        assert after.calls[0].messages[: len(first.calls[0].messages)] == first.calls[0].messages
        assert f"A {thing} costs" in after.calls[0].messages[-1].content
        last = await session.act(f"<answer>{session.episode.task.answer}</answer>")
        assert last.is_done
        assert last.rewards == {"solver": 1.0}

    run(test)


@workflow
async def together(team, task, world):
    """Both speak at once, then the judge."""
    said = await asyncio.gather(team.debater_1("a"), team.debater_2("b"))
    return await team.judge(*said)


def test_agents_that_are_to_act_at_once_act_in_any_order():
    async def test():
        environment = open_environment("debate")
        environment.context = replace(environment.context, workflow=together, options={})
        session = environment.open(seed=0)
        progress = await session.start()
        assert [call.agent for call in progress.calls] == ["debater_1", "debater_2"]
        with pytest.raises(ActionError, match="'judge' is not to act now; to act: debater_1, deb"):
            await session.act("x", "judge")
        progress = await session.act("two", "debater_2")
        assert [call.agent for call in progress.calls] == ["debater_1"]
        progress = await session.act("one", "debater_1")
        [call] = progress.calls
        assert call.agent == "judge"
        assert call.messages[-1].content == "[debater_1]\none\n\n[debater_2]\ntwo"
        await session.close()
        assert session.has_ended

    run(test)


def test_an_episode_whose_time_is_over_is_an_error_and_no_reward():
    async def test():
        environment = open_environment("math_alone")
        environment.context = replace(environment.context, timeout_s=0.2)
        session = environment.open(seed=0)
        assert session.next_agent == ""
        await session.start()
        assert session.next_agent == "solver"
        await asyncio.sleep(0.4)
        assert session.has_ended
        with pytest.raises(ActionError, match="the episode has ended; reset"):
            await session.act("\\boxed{1}")
        assert session.episode.error.startswith("TimeoutError: not ended after")
        assert session.episode.rewards == {}

    run(test)


def test_a_fault_of_the_world_is_no_reward():
    async def test():
        environment = open_environment("math_alone")

        async def fail(episode, world):
            raise InfrastructureError("the sandbox is gone")

        environment.context.rewards = {"correct": (fail, 1.0)}
        session = environment.open(seed=0)
        await session.start()
        with pytest.raises(InfrastructureError, match="the sandbox is gone"):
            await session.act("\\boxed{1}")

    run(test)


def test_the_same_seed_is_the_same_episode():
    environment = open_environment("math_alone")
    drawn = [environment.open(seed=seed).episode.task.prompt for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({environment.open().episode.task.id for _ in range(8)}) > 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"split": "tets"}, "split is 'tets'; the splits are train, test"),
        ({"split": "test", "index": 600}, "index is 600; the split 'test' has 600 tasks"),
    ],
)
def test_what_is_no_task_is_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        open_environment("math_alone").open(**options)
