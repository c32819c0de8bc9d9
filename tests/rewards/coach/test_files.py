"""A coach sees the files as they were when an action was taken, and those that the action wrote."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from rolecall.agents.agent import Policy
from rolecall.config.registry import resolve
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.types import Episode
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.data_science.environment import DataScienceWorld
from rolecall.environments.data_science.rows import modelling_tasks
from rolecall.models.loading import load_tokenizer
from rolecall.rewards.coach.rendering import Action, View, render
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.sandbox.base import Limits, Ran
from rolecall.tools.files import Files
from rolecall.tools.use import ToolUse, WorldTools
from tests.rewards.coach.server import coach_of, serving
from tests.tools.test_use import call, play_with
from tests.toy import agent, turn

pytestmark = pytest.mark.slow

TABLES = {
    "train.csv": "id,y\n1,0\n2,2\n",
    "test.csv": "id\n3\n4\n",
    "answers/truth.csv": "id,y\n3,0\n4,4\n",
}


PERFECT = b"id,y\n3,0\n4,4\n"


async def touch(run):
    """A program that is the name of a file and writes it; `list` alone writes nothing."""
    name, _, rest = run.code.strip().partition(" ")
    held = PERFECT if name == "submission.csv" else (name + rest).encode() * 3
    made = {} if name == "list" else {name: held}
    return Ran("finished", 0, "", "", 0.0, files={**run.files, **made})


@pytest.fixture
def task(tmp_path):
    """One task as DSBench has them: its answer is a folder."""
    (tmp_path / "answers").mkdir()
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
    places = {"train_file": "train.csv", "test_file": "test.csv", "answer_dir": "answers"}
    row = {"prompt": "Predict.", "metadata": {"task_id": "t"} | places}
    (tmp_path / "rows.json").write_text(json.dumps(row))
    record = {"metric": "rmse", "target_column": "y", "id_column": "id"}
    (tmp_path / "x_cleaned_prompts.json").write_text(json.dumps({"t": record}))
    return modelling_tasks(tmp_path / "rows.json")[0]


class Tables:
    def open(self, task, *, seed):
        return DataScienceWorld(task, touch, limits=Limits())


SAYS = {
    "engineer": ["```python\nlist\n```", "```python\nX_train.pkl\n```", "Prepared."],
    "modeler": ["```python\nmodel.pkl\n```", "Fitted."],
    "analyst": ["```python\nsubmission.csv\n```", "Submitted."],
}


def coached(task, folder, says=SAYS, **options) -> tuple[Episode, list]:
    """The three roles at work, each action scored by a coach who sees the truth for the analyst."""
    options = {"view": {"ground_truth_roles": ["analyst"]}} | options
    tokenizer = load_tokenizer(str(folder))
    left = {name: iter(texts) for name, texts in says.items()}
    use = ToolUse(kits=(WorldTools(),), format="code")
    team = {
        name: agent(
            name,
            Policy(name, tokenizer, ScriptedEngine(tokenizer, lambda r: next(left[r.policy]))),
            tools=use,
            sampling=Sampling(max_tokens=2000),
        )
        for name in SAYS
    }

    def scores(asked):
        more = {"answer_correct": 0} if "ground truth\n" in asked.user else {}
        return asked.json(5, **more)

    async def scenario():
        async with serving(scores) as server:
            coach = coach_of(server, **options)
            flow = resolve("workflow", "data_science", key="workflow")
            context = RolloutContext(team, flow, {}, Tables(), rewards={"coach": (coach, 1.0)})
            return await play(context, task), server.asked

    return asyncio.run(scenario())


def names(block: str) -> list[str]:
    return [line.partition(" ")[0] for line in block.splitlines()]


def test_each_action_is_judged_beside_the_files_of_its_moment(task, model_folder):
    episode, asked = coached(task, model_folder)
    assert episode.error is None
    inputs = ["test.csv", "train.csv"]
    seen, wrote = [], []
    for action in episode.turns:
        [question] = [
            one for one in asked if f"judge: {action.agent}, turn {action.index + 1} " in one.user
        ]
        seen.append(names(question.block("files available")))
        written = "files written by the action\n" in question.user
        wrote.append(question.block("files written by the action") if written else "")
    prepared = ["X_train.pkl", *inputs]
    fitted = ["X_train.pkl", "model.pkl", *inputs]
    assert seen == [
        inputs, inputs, prepared,
        prepared, fitted,
        fitted, ["X_train.pkl", "model.pkl", "submission.csv", *inputs],
    ]  # fmt: skip
    assert wrote == ["", "X_train.pkl", "", "model.pkl", "", "submission.csv", ""]


@pytest.mark.parametrize("when", ["after_episode", "after_action"])
def test_the_truth_that_is_shown_is_the_metric_of_that_moment_and_no_path(task, model_folder, when):
    """The last word of the engineer, before there is a submission, and the analyst's two turns."""
    view = {"ground_truth_roles": ["engineer", "analyst"]}
    _, asked = coached(task, model_folder, when=when, view=view)
    shown = [one.block("ground truth") for one in asked if "ground truth\n" in one.user]
    none = "submission.csv: no score (missing: there is no submission)"
    perfect = "submission.csv: 0"
    ends = "baseline: 2.23607\nbest: 0"
    errors = "".join(f"\n{of}: 0" for of in ("mae", "rmse_percent_of_range", "rmse_percent_of_iqr"))
    worth = [
        f"metric: rmse (lower is better)\n{now}\n{ends}"
        for now, ends in ((none, ends), (perfect, ends + errors))
    ]
    assert sorted(shown) == sorted([worth[0]] * 3 + [worth[1]] * 2)
    assert not any("answers" in one.user or "3,0" in one.user for one in asked)
    assert all(
        ("better than the baseline" in o.system) == ("ground truth" in o.user) for o in asked
    )


@pytest.mark.parametrize("when", ["after_episode", "after_action"])
def test_files_that_are_written_or_overwritten_later_are_not_seen_by_earlier_actions(
    task, model_folder, when
):
    """The engineer overwrites its own file, and the modeler then writes another one."""
    says = {
        "engineer": ["```python\nX_train.pkl\n```", "```python\nX_train.pkl longer\n```", "Done."],
        "modeler": ["```python\nmodel.pkl\n```", "Fitted."],
        "analyst": ["```python\nlist\n```", "Nothing."],
    }
    episode, asked = coached(task, model_folder, says=says, when=when)
    assert episode.error is None
    seen = {}
    for one in asked:
        agent, number = re.search(r"judge: (\w+), turn (\d+) ", one.user).groups()
        seen[agent, int(number)] = one.block("files available"), one.user
    first, second, third = (seen["engineer", number][0] for number in (1, 2, 3))
    assert "X_train.pkl" not in first
    assert "X_train.pkl (33 bytes)" in second
    assert "X_train.pkl (51 bytes)" in third
    for number in (1, 2, 3):
        assert "model.pkl" not in seen["engineer", number][1]
    assert "longer" not in seen["engineer", 1][1]
    assert "Fitted." not in seen["modeler", 1][1]


def test_a_task_without_an_answer_to_show_is_an_error_that_says_so(task):
    episode = Episode("0:t:0", task, 0, 0)
    action = Action(turn("a"), episode.task)
    with pytest.raises(ValueError, match="task t has no answer that a coach could be shown"):
        render(action, nonce="N", view=View(), ground_truth=True, structured=True)


def test_files_that_a_tool_writes_are_noted_on_the_turn_that_called_it(model_folder):
    replies = [
        call("file_system", operation="write", path="b.txt", content="x")
        + call("file_system", operation="write", path="a.txt", content="x"),
        call("file_system", operation="read", path="a.txt"),
        "c",
    ]
    episode = play_with(model_folder, replies, Files(writable=True))
    assert episode.error is None
    found = [turn.tools.files_written for turn in episode.turns]
    assert found == [["a.txt", "b.txt"], [], []]
