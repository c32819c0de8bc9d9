"""A coach that judges actions while their episode goes on, and agents that are told its words."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from rolecall.agents.agent import Policy
from rolecall.agents.control_tokens import controls
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Swap, Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.rewards.coach.checked_steps import CheckedSteps
from rolecall.rewards.coach.scores import CoachStopError
from rolecall.rollout.episodes import RolloutContext, play, replay
from rolecall.runtime.call_tree import IdleBarrier, outside, task_factory, waiting
from rolecall.workflows.base import workflow
from tests.rewards.coach.server import HANG, Refused, Said, coach_of, eight, serving
from tests.toy import agent

pytestmark = pytest.mark.slow

TASK = Task("t", "Say a word.", answer="truth")
# By the path of the call.
SAYS = {(0,): "draft", (1,): "critique", (2,): "revision", (0, 0): "left", (1, 0): "right"}
LATER = {"draft": ("critique", "revision"), "critique": ("revision",), "revision": ()}
ONLINE = {"when": "after_action"}


class Table:
    def open(self, task: Task, *, seed: int) -> World:
        return Won()


class Won(World):
    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": 1.0}


@workflow
async def chain(team, task, world):
    draft = await team.writer(task.prompt)
    critique = await team.reader(task.prompt, draft)
    return await team.writer(task.prompt, draft, critique)


class Stepping(ScriptedEngine):
    """A deterministic engine: all requests are answered at once when all episodes wait for it."""

    def __init__(self, tokenizer, barrier, before=None) -> None:
        super().__init__(tokenizer, lambda request: SAYS[request.order[2]])
        self.barrier, self.before = barrier, before
        self.pending, self.times = [], []

    async def generate(self, request):
        if self.before is not None:
            await self.before(request)
        turn = asyncio.get_running_loop().create_future()
        self.pending.append(turn)
        if len(self.pending) == 1:
            outside(self._step())
        with waiting():
            await turn
        return await super().generate(request)

    async def _step(self) -> None:
        await self.barrier.wait()
        due, self.pending = self.pending, []
        for turn in due:
            turn.set_result(None)
            self.times.append(time.monotonic())


def context_of(folder, coach, flow=chain, *, before=None) -> RolloutContext:
    tokenizer, barrier = load_tokenizer(str(folder)), IdleBarrier()
    policy = Policy("p", tokenizer, Stepping(tokenizer, barrier, before))
    team = {
        name: agent(name, policy, sampling=Sampling(max_tokens=500))
        for name in ("writer", "reader")
    }
    rewards = {"coach": (coach, 1.0)}
    return RolloutContext(team, flow, {}, Table(), rewards, retries=0, barrier=barrier)


def judged(folder, rule, flow=chain, **options):
    """-> (a played episode, what the coach was asked)."""

    async def scenario():
        asyncio.get_running_loop().set_task_factory(task_factory)
        async with serving(rule) as server:
            coach = coach_of(server, **options)
            return await play(context_of(folder, coach, flow), TASK), server.asked

    return asyncio.run(scenario())


def told(turn) -> str:
    return "\n".join(message.content for message in turn.messages)


# --- when ---


@workflow
async def at_once(team, task, world):
    left, right = await asyncio.gather(team.writer(task.prompt), team.reader(task.prompt))
    return await team.writer(task.prompt, left, right)


def test_an_action_is_judged_without_what_others_say_at_the_same_time(model_folder):
    """Who is faster must not decide what the coach is asked; later turns know of both."""
    episode, asked = judged(model_folder, eight, at_once, **ONLINE)
    assert episode.error is None
    teams = {
        one.block("action"): [name for name in ("writer", "reader") if f"- {name}" in one.user]
        for one in asked
    }
    assert teams == {"left": ["writer"], "right": ["reader"], "revision": ["writer", "reader"]}


def test_an_action_is_judged_while_the_episode_goes_on_and_the_rest_of_it_is_unknown(model_folder):
    """Each later call is answered only once the coach has been asked about all earlier actions."""

    async def scenario():
        asyncio.get_running_loop().set_task_factory(task_factory)
        async with serving(eight) as server:

            async def asked_before(request):
                async with asyncio.timeout(20):
                    while len(server.asked) < request.order[2][0]:
                        await asyncio.sleep(0.01)

            coach = coach_of(server, **ONLINE)
            context = context_of(model_folder, coach, before=asked_before)
            return await play(context, TASK), server.asked

    episode, asked = asyncio.run(scenario())
    assert episode.error is None
    assert [one.block("action") for one in asked] == list(LATER)
    for one in asked:
        assert not any(text in one.user for text in LATER[one.block("action")])
        assert "final answer is delivered" not in one.user
        assert "outcome" not in one.user
    assert "writer, turn 2 of this agent" in asked[2].user
    assert [turn.rewards for turn in episode.turns] == [{"coach": 0.8}] * 3
    assert episode.metrics["count/coach_calls"] == 3


@pytest.mark.parametrize("when", ["after_episode", "after_action"])
def test_no_question_holds_what_was_said_later(model_folder, when):
    _, asked = judged(model_folder, eight, when=when)
    assert Counter(one.block("action") for one in asked) == dict.fromkeys(LATER, 1)
    for one in asked:
        assert not any(text in one.user for text in LATER[one.block("action")])


def test_an_episode_whose_coach_is_slow_holds_up_no_other_one(model_folder):
    """All calls of two episodes are answered before the coach of the first gives up."""

    def rule(asked):
        return HANG if asked.block("action") == "draft" else asked.json(8)

    async def scenario():
        asyncio.get_running_loop().set_task_factory(task_factory)
        async with serving(rule) as server:
            coach = coach_of(server, engine={"timeout_s": 3.0}, **ONLINE)
            context = context_of(model_folder, coach)
            began = time.monotonic()
            both = await asyncio.gather(*(play(context, TASK, attempt=n) for n in (0, 1)))
            calls = context.agents["writer"].policy.engine.times
            return both, [at - began for at in calls], time.monotonic() - began

    both, calls, took = asyncio.run(scenario())
    assert len(calls) == 6
    assert max(calls) < 3.0 <= took
    for episode in both:
        assert "no result within 3 s" in episode.turns[0].coach.error
        assert [turn.trained for turn in episode.turns] == [False, True, True]
        assert episode.metrics["count/coach_errors"] == 1


def test_judging_ends_with_an_episode_that_is_given_up(model_folder):
    @workflow
    async def breaks(team, task, world):
        await team.writer(task.prompt)
        await asyncio.sleep(0.3)
        raise ValueError("a mistake")

    async def scenario():
        asyncio.get_running_loop().set_task_factory(task_factory)
        async with serving(lambda _: HANG) as server:
            coach = coach_of(server, **ONLINE)
            episode = await play(context_of(model_folder, coach, breaks), TASK)
            assert "a mistake" in episode.error
            async with asyncio.timeout(10):  # less than the coach's own limits
                while server.under_way:
                    await asyncio.sleep(0.01)
            return len(server.asked)

    assert asyncio.run(scenario()) == 1


def test_hindsight_comes_after_the_end_and_is_shown_to_nobody(model_folder):
    def rule(asked):
        return asked.json(2 if " outcome\n" in asked.user else 9)

    options = {"hindsight": True, "show_to": ("reader",)}
    episode, _ = judged(model_folder, rule, **ONLINE, **options)
    draft, critique, _ = episode.turns
    assert (draft.coach.note.score, draft.coach.note.final.score) == (9.0, 2.0)
    assert draft.rewards == {"coach": pytest.approx(0.2)}
    assert "9 of 10" in told(critique)


def test_candidates_are_judged_each_by_itself(model_folder):
    @workflow(candidates=True)
    async def drawn(team, task, world):
        return team.choose((await team.writer.candidates(3)(task.prompt))[1])

    episode, asked = judged(model_folder, eight, drawn, **ONLINE)
    assert episode.error is None
    assert len(asked) == 3
    assert [turn.rewards for turn in episode.turns] == [{"coach": 0.8}] * 3


# --- who is told ---


def test_the_named_agent_is_told_the_score_and_the_reasons_and_no_other_is(model_folder):
    episode, _ = judged(model_folder, eight, show_to=("reader",), **ONLINE)
    draft, critique, revision = episode.turns
    assert told(critique).endswith("[writer]\ndraft\n\n[coach on writer]\n8 of 10: because")
    assert "coach on" not in told(draft) + told(revision)


def test_an_agent_is_told_of_its_own_turns_too(model_folder):
    episode, _ = judged(model_folder, eight, show_to=("writer",), **ONLINE)
    revision = episode.turns[2]
    assert [message.role for message in revision.messages] == ["user", "assistant", "user"]
    assert "[coach on writer]" in revision.messages[2].content
    assert "[coach on reader]" in revision.messages[2].content


def test_words_of_a_coach_hold_no_control_tokens_no_thoughts_and_no_form(model_folder):
    tokenizer = load_tokenizer(str(model_folder))
    special = sorted(controls(tokenizer).special)[0]

    def prompt(reasons):
        episode, _ = judged(
            model_folder, lambda one: one.text(6, before=reasons), answers={"structured": False},
            show_to=("reader",), **ONLINE,
        )  # fmt: skip
        assert episode.error is None
        return episode.turns[1]

    foreign, plain = prompt(f"<think>hm</think>Good. {special}"), prompt("Good.")
    assert told(plain).endswith("6 of 10: Good.")
    assert "hm" not in told(foreign)
    ids = controls(tokenizer).ids
    assert [i for i in foreign.prompt if i in ids] == [i for i in plain.prompt if i in ids]


def test_what_was_judged_with_the_truth_in_view_is_shown_to_nobody(model_folder):
    def rule(asked):
        return asked.json(8, answer_correct=1) if "ground truth\n" in asked.user else asked.json(8)

    options = {"view": {"ground_truth_roles": ["writer"]}, "show_to": ("reader", "writer")}
    episode, _ = judged(model_folder, rule, **ONLINE, **options)
    _, critique, revision = episode.turns
    assert "coach on" not in told(critique)
    assert "[coach on reader]" in told(revision)
    assert "coach on writer" not in told(revision)


def test_an_action_without_a_score_comes_without_words_and_is_handled_as_declared(model_folder):
    def rule(asked):
        return Said("?") if asked.block("action") == "draft" else asked.json(8)

    episode, _ = judged(model_folder, rule, show_to=("reader",), **ONLINE)
    draft, critique, _ = episode.turns
    assert "coach on" not in told(critique)
    assert (draft.trained, draft.rewards) == (False, {})
    assert "no readable score" in draft.coach.error
    options = {"on_error": "drop_episode", "show_to": ("reader",)}
    episode, _ = judged(model_folder, rule, **ONLINE, **options)
    assert "CoachError: no readable score" in episode.error


def test_a_refused_key_ends_the_run_where_an_agent_waits_for_the_words(model_folder):
    with pytest.raises(CoachStopError, match="refuses the key"):
        judged(model_folder, lambda _: Refused(401), show_to=("reader",), **ONLINE)


def test_scores_can_be_shown_only_where_they_are_given_in_time():
    with pytest.raises(ValueError, match="show_to needs when: after_action"):
        CheckedSteps(show_to=("reader",))


# --- replays ---


def test_a_replay_keeps_the_words_on_turns_that_are_repeated_and_judges_the_others(model_folder):
    """The coach says another score each time, so words that were asked for anew would differ."""
    times = Counter()

    def rule(asked):
        times[asked.block("action")] += 1
        return asked.json(times[asked.block("action")])

    async def scenario():
        asyncio.get_running_loop().set_task_factory(task_factory)
        async with serving(rule) as server:
            coach = coach_of(server, show_to=("reader", "writer"), **ONLINE)
            context = context_of(model_folder, coach)
            episode = await play(context, TASK)
            again = await replay(context, episode, Swap((2,), "another end"))
            early = await replay(context, episode, Swap((0,), "another draft"))
            return episode, again, early

    episode, again, early = asyncio.run(scenario())
    assert [again.error, early.error] == [None, None]
    assert told(again.turns[1]) == told(episode.turns[1])
    assert again.turns[1].coach.note.score == 1.0
    assert (
        again.turns[1].coach.note.usage["cost_usd"] == again.turns[1].coach.note.usage["tries"] == 0
    )
    assert [turn.coach.requests for turn in again.turns] == [None, None, 1]
    # The critique has the words it had, but of another draft: that is another action.
    assert dict(times) == {
        "draft": 1, "critique": 2, "revision": 2, "another end": 1, "another draft": 1
    }  # fmt: skip
