"""Questions are answered by looking things up and calculating, with the tools that agents name."""

from __future__ import annotations

import asyncio
import json

import pytest

from rolecall.core.interfaces.tool import ToolError
from rolecall.core.types import Episode, Task
from rolecall.environments.tool_use.environment import NOTICE, ToolUseEnvironment, is_same_answer
from rolecall.tools.calculator import calculator
from rolecall.tools.use import Stateless, ToolUse, WorldTools
from rolecall.workflows.multi_turn import multi_turn
from rolecall.workflows.single import single
from tests.environments.contexts import play_in, said_by


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def play_with_tools(folder, task, *says, flow=single, role="solver") -> Episode:
    team = said_by(folder, **{role: list(says)})
    team[role].tools = ToolUse((WorldTools(), Stateless(calculator)), format="tags")
    return play_in(ToolUseEnvironment(), task, flow, team)


@pytest.mark.parametrize("kind", ["one", "two", "delivered"])
def test_look_ups_and_a_calculation_reach_every_generated_answer(kind, model_folder):
    task = ToolUseEnvironment(kinds=[kind]).tasks("train")[3]
    lookups = "".join(call("lookup", name=name) for name in task.info["lookups"])
    sums = call("calculator", expression=task.info["expression"])
    done = f"<answer>{task.answer}</answer>"
    episode = play_with_tools(model_folder, task, lookups, sums, done)
    assert episode.scores["team"] == 1.0
    assert episode.metrics["count/tool_calls"] == len(task.info["lookups"]) + 1
    [seen] = episode.turns[1].tools.calls
    assert seen["result"] == task.answer
    told = [found["result"] for found in episode.turns[0].tools.calls]
    for name, fact in zip(task.info["lookups"], told, strict=True):
        assert name in fact


def test_the_question_alone_does_not_tell_its_answer():
    """Tasks with one and the same question have answers of their own."""
    tasks = ToolUseEnvironment(kinds=["one"]).tasks("train")
    answers: dict[str, set[str]] = {}
    for task in (tasks[i] for i in range(2000)):
        answers.setdefault(task.prompt, set()).add(task.answer)
        assert task.answer not in task.prompt
    several = [found for found in answers.values() if len(found) > 1]
    assert len(several) > len(answers) / 2


def test_no_test_question_is_trained_on():
    environment = ToolUseEnvironment(test_size=100)
    train = {environment.tasks("train")[i].prompt for i in range(3000)}
    assert not train & {task.prompt for task in environment.tasks("test")}
    assert len(environment.tasks("test")) == 100


def test_bad_calls_are_told_and_counted_and_the_episode_goes_on(model_folder):
    task = ToolUseEnvironment(kinds=["one"]).tasks("train")[0]
    episode = play_with_tools(
        model_folder,
        task,
        call("lookup", name="unicorn") + call("weather", town="Borford"),
        "<tool_call>lamp</tool_call>",
        f"<answer>{task.answer}</answer>",
    )
    counts = {name: value for name, value in episode.metrics.items() if "tool_" in name}
    assert counts == {"count/tool_refused": 1, "count/tool_unknown": 1, "count/tool_malformed": 1}
    assert "nothing is known of 'unicorn'" in episode.turns[0].tools.calls[0]["result"]
    assert [turn.valid for turn in episode.turns] == [False, False, True]
    assert episode.scores["team"] == 1.0


def test_a_workflow_of_several_turns_ends_with_the_answer(model_folder):
    task = ToolUseEnvironment().tasks("test")[0]
    says = [call("lookup", name=task.info["lookups"][0]), "I think so.", "<answer>7</answer>"]
    episode = play_with_tools(model_folder, task, *says, flow=multi_turn, role="actor")
    assert len(episode.turns) == 3
    assert NOTICE in episode.turns[2].messages[-1].content
    assert episode.scores["team"] == 0.0


@pytest.mark.parametrize(
    ("given", "accepted", "same"),
    [
        ("1,240", ["1240"], True),
        ("1240 coins", ["1240"], True),
        ("1240.0", ["1240"], True),
        ("3.5", ["35"], False),  # words are compared without their points
        ("-5", ["5"], False),
        ("about 5", ["5"], False),
        ("seven", ["7", "Seven"], True),
        ("the Jane Austen.", ["Jane Austen"], True),
        ("Austen", ["Jane Austen"], False),
        ("", ["7"], False),
    ],
)
def test_numbers_are_compared_by_value_and_words_as_words(given, accepted, same):
    assert is_same_answer(given, accepted) is same


def test_only_a_whole_last_answer_of_the_final_text_scores():
    async def score(answer, **notes):
        world = ToolUseEnvironment().open(Task("t", "?", 7), seed=0)
        return (await world.score(Episode("e", Task("t", "?"), 0, 0, answer=answer,
                                          **notes)))["team"]  # fmt: skip

    for answer, value in (
        ("<answer>7</answer>", 1.0), ("7", 0.0), ("<answer>7", 0.0), ("<answer></answer>", 0.0),
        ("<answer>7</answer> or <answer>8</answer>", 0.0),
        ("<answer>8</answer> no: <answer> 7 </answer>", 1.0),
    ):  # fmt: skip
        assert asyncio.run(score(answer)) == value, answer
    assert asyncio.run(score("<answer>7</answer>", is_truncated=True)) == 0.0


def test_rows_bring_their_own_facts(tmp_path):
    path = tmp_path / "shop.jsonl"
    path.write_text(
        '{"question": "What is a lamp?", "answer": ["light", "a light"], '
        '"facts": {"Lamp": "It gives light.", "Age": 7, "None": null}}\n'
        '{"question": "Two plus two?", "answer": 4}\n'
    )
    environment = ToolUseEnvironment(str(path))
    first, second = environment.tasks("train")
    assert (first.answer, second.answer) == (["light", "a light"], "4")

    async def main():
        [lookup] = environment.open(first, seed=0).tools()
        assert await lookup.call(name=" LAMP ") == "It gives light."
        assert await lookup.call(name="age") == "7"
        with pytest.raises(ToolError, match="nothing is known"):
            await lookup.call(name="none")

    asyncio.run(main())
    assert environment.open(second, seed=0).tools() == []


@pytest.mark.parametrize(
    "row", [{"question": "q"}, {"question": "q", "answer": "a", "facts": ["x"]},
            {"question": "q", "answer": "a", "facts": {"x": ["y"]}}],
)  # fmt: skip
def test_a_malformed_row_is_an_error_that_names_file_and_row(tmp_path, row):
    path = tmp_path / "shop.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n' + f"{json.dumps(row)}\n" * 2)
    with pytest.raises(ValueError, match=r"shop\.jsonl:2: "):
        ToolUseEnvironment(str(path)).tasks("train")


@pytest.mark.parametrize("options", [{"kinds": ["one"], "train": "a"}, {"test_size": 3}])
def test_an_option_without_effect_is_an_error(options):
    with pytest.raises(ValueError, match="no effect"):
        ToolUseEnvironment(test="b", **options)
