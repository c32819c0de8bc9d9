"""An agent with tools is asked until it calls nothing; what goes wrong is told, counted, seen."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import pytest

from rolecall.agents.agent import Policy
from rolecall.agents.parsers import parse_boxed
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.interfaces.tool import Tool, ToolError
from rolecall.core.types import Episode
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.storage.episode_io import from_json, to_json
from rolecall.tools.calculator import calculator
from rolecall.tools.files import Files
from rolecall.tools.functions import tool
from rolecall.tools.python import Python
from rolecall.tools.search import Search
from rolecall.tools.use import Stateless, ToolUse, WorldTools
from rolecall.workflows.base import workflow
from tests.rollout.test_rollout import run, tasks
from tests.toy import Letters, agent, solo


def call(name: str, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@tool
async def slow(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


@tool
def blocks() -> str:
    """Never comes back to the event loop."""
    time.sleep(30)
    return ""


@tool
def fails(how: str) -> str:
    """Raises."""
    kinds = {"told": ToolError, "broken": InfrastructureError, "stop": StopIteration}
    kinds |= {"exit": SystemExit}
    raise kinds.get(how, ZeroDivisionError)("this way")


def play_with(folder, replies: list[str], *kits, flow=solo, environment=None, **options) -> Episode:
    """One episode in which the agents say these things in turn."""
    tokenizer = load_tokenizer(str(folder))
    said = iter(replies)
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda request: next(said)))
    use = ToolUse(kits=tuple(kits), **({"format": "tags"} | options))
    team = {
        name: agent(
            name, policy, tools=use, sampling=Sampling(max_tokens=200_000), invalid_penalty=0.25
        )
        for name in ("solver", "other")
    }
    context = RolloutContext(
        team,
        flow, {}, environment or Letters(), rewards={},
    )  # fmt: skip
    return run(play(context, tasks(1)[0], step=1))


def test_the_agent_is_asked_again_with_each_result_until_it_calls_nothing(model_folder):
    replies = [
        "Hm. " + call("calculator", expression="6*7"),
        call("calculator", expression="42+1"),
        "c",
    ]
    episode = play_with(model_folder, replies, Stateless(calculator))
    assert episode.error is None
    assert episode.answer == "c"
    assert [turn.path for turn in episode.turns] == [(0, 0), (0, 2), (0, 4)]  # calls between
    first, second, last = episode.turns
    assert first.tools.calls == [
        {"name": "calculator", "arguments": {"expression": "6*7"}, "result": "42"}
    ]
    assert "calculator(expression: string)" in first.messages[0].content
    assert second.messages[-1].content == "<tool_response>\n42\n</tool_response>"
    assert [turn.parents for turn in episode.turns] == [(), (first.id,), (second.id,)]
    for before, after in ((first, second), (second, last)):
        spoken = np.concatenate(before.ids)
        assert after.ids[0][: len(spoken)].tolist() == spoken.tolist(), "ids are kept verbatim"
    assert episode.metrics["count/tool_calls"] == 2
    assert all(turn.valid for turn in episode.turns)


def test_each_turn_of_a_tool_loop_acts_on_what_the_tool_has_just_shown(model_folder):
    """Equal results are equal states, as equal observations of a world; 42 is not 43."""

    def states(*expressions: str) -> list[str]:
        calls = [call("calculator", expression=one) for one in expressions]
        episode = play_with(
            model_folder, [*calls, "c"], Stateless(calculator), environment=ShownLetters()
        )
        return [turn.state for turn in episode.turns]

    first, second, last = states("6*7", "42+1")
    assert len({first, second, last, ""}) == 4
    assert states("40+2", "6*7") == [first, second, second]


class ShownLetters(Letters):
    def open(self, task, *, seed):
        world = super().open(task, seed=seed)
        world.reset = shown_letter
        return world


async def shown_letter() -> Observation:
    return Observation("a letter")


def test_a_tool_with_limits_of_its_own_is_waited_for(model_folder):
    """Its queue and its servers are not the agent's fault: what ends it is its own error."""

    @tool(ends_itself=True)
    async def patient(fails: bool) -> str:
        """Waits longer than calls may."""
        await asyncio.sleep(0.3)
        if fails:
            raise InfrastructureError("the server is down")
        return "here"

    for fails in (False, True):
        replies = [call("patient", fails=fails), "c"]
        episode = play_with(model_folder, replies, Stateless(patient), timeout_s=0.1)
        said = episode.error or ""
        assert said.startswith("InfrastructureError: the server is down") == fails
        assert bool(said) == fails
        assert "count/tool_timeouts" not in episode.metrics


@pytest.mark.parametrize("kit", [Search(url="http://127.0.0.1:1"), Python()])
def test_search_and_python_have_limits_of_their_own(kit):
    async def opened() -> list[Tool]:
        async with kit.open(World(), seed=0) as tools:
            return tools

    assert [found.ends_itself for found in asyncio.run(opened())] == [True]


def test_calls_of_one_turn_run_at_once_and_answer_in_order(model_folder):
    begun: list[int] = []

    @tool
    async def meets(number: int) -> str:
        """Waits until all three calls have begun; the last one ends first."""
        begun.append(number)
        while len(begun) < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05 * (3 - number))
        return f"met {number}"

    replies = ["".join(call("meets", number=number) for number in (1, 2, 3)), "c"]
    episode = play_with(model_folder, replies, Stateless(meets), timeout_s=10)
    told = episode.turns[1].messages[-1].content
    places = [told.find(f"met {number}") for number in (1, 2, 3)]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("said", "told", "counted", "valid"),
    [
        ("<tool_call>{add}</tool_call>", "not JSON", "malformed", False),
        (call("clock"), "there is no tool 'clock'; there are: fails, slow", "unknown", False),
        (call("fails", how="told"), "this way", "refused", True),
        (call("fails", what=1), "argument 'how': field required", "refused", True),
        (call("fails", how="zero"), "ZeroDivisionError: this way", "raised", True),
        (call("fails", how="stop"), "RuntimeError: StopIteration", "raised", True),
        (call("fails", how="exit"), "SystemExit: this way", "raised", True),
        (call("slow", seconds=9), "no answer within 0.2 s", "timeouts", True),
        (call("slow", seconds="soon"), "argument 'seconds'", "refused", True),
    ],
)
def test_bad_calls_are_told_counted_and_written_down(model_folder, said, told, counted, valid):
    kits = (Stateless(fails), Stateless(slow))
    episode = play_with(model_folder, [said, "c"], *kits, timeout_s=0.2)
    assert episode.error is None
    first, last = episode.turns
    assert f"Error: {told}" in last.messages[-1].content
    [written] = first.tools.calls
    assert written["problem"] == counted
    assert episode.metrics[f"count/tool_{counted}"] == 1
    assert first.valid == valid
    assert first.rewards == ({} if valid else {"invalid": -0.25})


def test_a_broken_tool_ends_the_episode_with_its_error(model_folder):
    episode = play_with(model_folder, [call("fails", how="broken"), "c"], Stateless(fails))
    assert episode.error.startswith("InfrastructureError: this way")
    assert episode.rewards == {}


def test_a_tool_that_blocks_holds_nobody_up(model_folder):
    beats = []

    @tool
    async def beat() -> str:
        """Counts."""
        for _ in range(20):
            await asyncio.sleep(0.01)
            beats.append(time.monotonic())
        return "done"

    replies = [call("blocks") + call("beat"), "c"]
    episode = play_with(model_folder, replies, Stateless(blocks), Stateless(beat), timeout_s=1.0)
    assert [c.get("problem") for c in episode.turns[0].tools.calls] == ["timeouts", None]
    assert beats[-1] - beats[0] < 0.9


def test_an_agent_that_never_stops_calling_is_stopped(model_folder):
    replies = [call("calculator", expression=str(n)) for n in range(9)]
    episode = play_with(model_folder, replies, Stateless(calculator), max_calls=3)
    assert len(episode.turns) == 4
    assert "calls" not in episode.turns[-1].info, "the last calls are not made"
    assert episode.metrics["count/tool_limit"] == 1


def test_one_turn_makes_no_more_calls_than_it_may(model_folder):
    replies = [call("calculator", expression="6*7") * 300, "c"]
    episode = play_with(model_folder, replies, Stateless(calculator), calls_per_turn=3)
    first, last = episode.turns
    told = last.messages[-1].content
    assert told.count("42") == 3
    assert "you made 300 calls in one message. Only the first 3 were made" in told
    assert [c.get("problem") for c in first.tools.calls] == [None, None, None, "too_many"]
    assert episode.metrics["count/tool_calls"] == 3
    assert episode.metrics["count/tool_too_many"] == 1
    assert first.valid


def test_the_results_of_one_turn_share_its_characters(model_folder):
    @tool
    def say(letter: str, times: int) -> str:
        """A letter, as often as asked."""
        return letter * times

    replies = [call("say", letter="a", times=900) * 8 + call("say", letter="b", times=20), "c"]
    episode = play_with(model_folder, replies, Stateless(say), chars_per_turn=1000)
    told = episode.turns[1].messages[-1].content
    assert "b" * 20 in told
    assert "[778 characters left out]" in told  # (1000 - 20) / 8 = 122 of 900 are kept
    assert episode.metrics["count/tool_results_cut"] == 1


def test_a_tools_name_of_any_length_does_not_flood_the_prompt(model_folder):
    for name in ("x" * 150, "x" * 100_000):
        replies = [call(name), "c"]
        episode = play_with(model_folder, replies, Stateless(calculator), result_chars=100)
        assert episode.error is None
        assert len(episode.turns[1].messages[-1].content) < 300


def test_half_of_a_surrogate_pair_is_told_and_the_episode_is_scored(model_folder):
    @tool
    def broken() -> str:
        """Says what is no text."""
        return "\ud800"

    replies = [
        '<tool_call>{"name": "calculator", "arguments": {"expression": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": "{\\"expression\\": \\"\\\\udc00\\"}"}'
        "</tool_call>",
        call("broken"),
        "c",
    ]
    episode = play_with(model_folder, replies, Stateless(calculator), Stateless(broken))
    assert episode.error is None
    assert "team" in episode.scores
    assert episode.metrics["count/tool_malformed"] == 3
    assert episode.turns[4].messages[-1].content == "<tool_response>\n?\n</tool_response>"
    assert from_json(to_json(episode)).turns[0].info == episode.turns[0].info


def test_long_results_are_cut(model_folder):
    @tool
    def flood() -> str:
        """A lot."""
        return "a" * 5000 + "b" * 5000

    episode = play_with(model_folder, [call("flood"), "c"], Stateless(flood), result_chars=200)
    told = episode.turns[1].messages[-1].content
    assert "[9800 characters left out]" in told
    assert len(told) < 300


def test_the_parser_reads_the_last_turn_only(model_folder):
    @workflow(parsers={})
    async def flow(team, task, world):
        return await team.solver(task.prompt)

    replies = [call("calculator", expression="1"), "no box"]
    tokenizer = load_tokenizer(str(model_folder))
    said = iter(replies)
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda request: next(said)))

    use = ToolUse(kits=(Stateless(calculator),), format="tags")
    solver = agent(
        "solver", policy, tools=use, parser=parse_boxed, sampling=Sampling(max_tokens=500)
    )
    episode = run(
        play(RolloutContext({"solver": solver}, flow, {}, Letters(), rewards={}), tasks(1)[0])
    )
    assert [turn.valid for turn in episode.turns] == [True, False]


def test_agents_that_share_a_kit_share_its_files_within_an_episode(model_folder):
    @workflow
    async def handover(team, task, world):
        await team.solver(task.prompt)
        return await team.other(task.prompt)

    replies = [
        call("file_system", operation="write", path="plan", content="go"), "written",
        call("file_system", operation="read", path="plan"), "c",
    ]  # fmt: skip
    kit = Files()
    episode = play_with(model_folder, replies, kit, flow=handover)
    assert episode.turns[2].tools.calls[0]["result"] == "go"
    again = play_with(model_folder, replies[2:], kit, flow=solo)
    assert "no such file" in again.turns[0].tools.calls[0]["result"]


def test_a_world_can_bring_tools(model_folder):
    class Clock(Letters):
        def open(self, task, *, seed):
            return ClockWorld()

    class ClockWorld(World):
        closed = False

        def tools(self):
            @tool
            def now() -> str:
                """The time."""
                assert not self.closed
                return "noon"

            return [now]

        async def score(self, episode):
            return {"team": float("noon" in episode.turns[1].messages[-1].content)}

        async def close(self):
            self.closed = True

    episode = play_with(model_folder, [call("now"), "c"], WorldTools(), environment=Clock())
    assert episode.scores["team"] == 1.0
    without = play_with(model_folder, ["c"], WorldTools())
    assert without.error.startswith("ValueError: LettersWorld offers no tools")


def test_two_tools_of_one_name_are_an_error(model_folder):
    episode = play_with(model_folder, ["c"], Stateless(calculator), Stateless(calculator))
    assert episode.error.startswith("ValueError: two tools of an agent are called calculator")


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3_2"])
def test_native_calls_go_through_the_models_own_template(model_folder, family):
    """Public templates, as TRL carries them."""
    folder = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    tokenizer = load_tokenizer(str(model_folder))
    tokenizer.chat_template = (folder / f"{family}.jinja").read_text()
    written = {"name": "calculator", "arguments": {"expression": "6*7"}}
    bare = json.dumps({"name": "calculator", "parameters": {"expression": "6*7"}})
    called = bare if family == "llama3_2" else f"<tool_call>\n{json.dumps(written)}\n</tool_call>"
    said = iter([called, "It is 42."])
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda request: next(said)))
    use = ToolUse(kits=(Stateless(calculator),), format="native")
    solver = agent("solver", policy, tools=use, sampling=Sampling(max_tokens=500))
    episode = run(
        play(RolloutContext({"solver": solver}, solo, {}, Letters(), rewards={}), tasks(1)[0])
    )
    assert episode.error is None
    first, last = episode.turns
    assert first.tools.calls[0]["result"] == "42"
    shown = tokenizer.decode(last.ids[0])
    assert "Value of an arithmetic expression" in shown, "the template tells the tools"
    assert shown.count("6*7") == 1, "what was said stands there once"
    assert "42" in shown.partition("6*7")[2]
    sampled = first.ids[1].tolist()
    places = range(len(last.ids[0]) - len(sampled))
    assert any(last.ids[0][k : k + len(sampled)].tolist() == sampled for k in places)
