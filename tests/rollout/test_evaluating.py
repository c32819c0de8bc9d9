"""How held-out tasks are evaluated: sampling, attempts by source, subsets."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode, Task
from rolecall.monitor import terminal
from rolecall.monitor.comparison import compare
from rolecall.rollout.evaluation import EvaluationOutputs, evaluate
from rolecall.rollout.evaluation_summary import summarise
from rolecall.rollout.held_out import held_out
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from tests.toy import Letters, command, episode, solo_config, write

HERE = Path(__file__).resolve()


class Sources(Letters):
    """Letters of three sources: every task with an even number is of `even`, and so on."""

    def tasks(self, split: str) -> list[Task]:
        names = ("even", "odd")
        return [
            Task(task.id, task.prompt, task.answer, {"source": names[i % 2]})
            for i, task in enumerate(super().tasks(split))
        ]


def config_of(folder: Path, **changes) -> dict:
    config = solo_config(folder, environment={"name": f"{HERE}:Sources", "size": 12})
    config["evaluation"] = {"tasks": 3, "samples": 2, "k": 2} | changes.pop("evaluation", {})
    return config | changes


class Said(list):
    """All episodes of an evaluation."""

    def write(self, episodes: list[Episode]) -> None:
        self.extend(episodes)


def attempts(source: str, *scores: float, number: int = 0) -> list[Episode]:
    group = []
    for attempt, score in enumerate(scores):
        made = episode(attempt, [], {})
        made.task = Task(f"{source}-{number}", "?", "1", {"source": source})
        made.scores["team"] = float(score)
        group.append(made)
    return group


def test_evaluations_sample_otherwise_than_training(model_folder):
    given = {"sampling": {"temperature": 0.6, "top_p": 0.95}}
    run = build(validate(Config.model_validate(config_of(model_folder, evaluation=given))))

    async def play():
        asyncio.get_running_loop().set_task_factory(task_factory)
        around = EvaluationOutputs(sink=said)
        await evaluate(run.context, run.test, run.config.evaluation, around=around)

    said = Said()
    asyncio.run(play())
    turns = [turn for episode in said for turn in episode.turns]
    assert len(said) == 12
    assert {turn.temperature for turn in turns} == {0.6}
    assert max(len(turn.tokens) for turn in turns) <= 8  # max_tokens is the agent's own
    assert run.context.agents["solver"].sampling.temperature == 1.0
    asyncio.run(run.close())


def test_one_likely_token_is_the_same_in_all_attempts(model_folder, tmp_path, capsys):
    config = config_of(model_folder, evaluation={"sampling": {"top_k": 1}, "k": 1})
    path = write(tmp_path / "c.yaml", config)
    assert command("eval", path, "--json") == 0
    narrow = json.loads(capsys.readouterr().out)
    greedy = ["evaluation.sampling={}", "evaluation.greedy=true", "evaluation.samples=1"]
    assert command("eval", path, *greedy, "--json") == 0
    assert json.loads(capsys.readouterr().out)["avg@1"] == pytest.approx(narrow["avg@2"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"greedy": True, "samples": 1, "k": 1, "sampling": {"top_p": 0.9}},
         "evaluation.sampling.top_p: evaluation.greedy takes the most likely tokens"),
        ({"sampling": {"temperature": 0}}, "write evaluation.greedy=true instead"),
        ({"samples": {"even": 1, "default": 1}}, "evaluation.k: pass@2 needs"),
        ({"samples": {}}, "evaluation.samples: names no source"),
        ({"agent": "solvr"}, "evaluation.agent: there is no agent 'solvr'; nearest: "),
        ({"tasks": 0, "subset_seed": 1}, "evaluation.subset_seed has no effect"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_in_a_line(model_folder, given, said):
    config = Config.model_validate(config_of(model_folder, evaluation=given))
    with pytest.raises(ConfigError) as error:
        validate(config)
    [line] = error.value.problems
    assert said in line


@pytest.mark.parametrize("number", [0, "two", 1.5, True])
def test_a_wrong_number_of_a_source_is_refused_in_a_line(model_folder, tmp_path, capsys, number):
    config = config_of(model_folder, evaluation={"samples": {"even": number}})
    assert command("eval", write(tmp_path / "c.yaml", config)) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "evaluation.samples: even needs a whole number of at least 1" in line


def test_a_source_that_no_task_is_of_is_refused(model_folder):
    given = {"samples": {"evn": 4, "default": 2}}
    plan = validate(Config.model_validate(config_of(model_folder, evaluation=given)))
    with pytest.raises(ConfigError, match=r"evaluation\.samples\.evn: .*nearest: even"):
        build(plan)


def test_sources_have_numbers_of_attempts_of_their_own(model_folder, tmp_path, capsys):
    config = config_of(model_folder, evaluation={"samples": {"odd": 4, "default": 1}, "k": None})
    assert command("eval", write(tmp_path / "c.yaml", config), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    even, odd = found["by_source"]["even"], found["by_source"]["odd"]
    assert found["avg@n"] == pytest.approx((3 * even["avg@1"] + 3 * odd["avg@4"]) / 6)
    assert "pass@4" in odd
    assert "pass@1" in even
    assert not [name for name in found if name.startswith("pass@")]
    assert found["coverage"] == 1.0


def test_the_mean_over_sources_counts_each_alike():
    groups = [attempts("big", 1, 1, number=i) for i in range(8)]
    groups += [attempts("small", 0, 1, number=i) for i in range(2)]
    found = summarise(groups, EvaluationConfig(samples=2, k=1))
    assert found["avg@2"] == pytest.approx(0.9)
    over = found["over_sources"]
    assert (over["avg@2"], over["num_sources"], over["num_tasks"]) == (0.75, 2, 10)
    assert over["avg@2_margin"] == 0.0
    uneven = [attempts("a", 1), attempts("a", 0), attempts("b", 1), attempts("b", 1)]
    over = summarise(uneven, EvaluationConfig(samples=1))["over_sources"]
    one = summarise(uneven, EvaluationConfig(samples=1))["by_source"]["a"]["avg@1_margin"]
    assert over["avg@1_margin"] == pytest.approx(one / 2)
    assert "over_sources" not in summarise(groups[:8], EvaluationConfig(samples=2, k=1))


def test_the_table_and_the_comparison_name_both_means():
    groups = [attempts("big", 1, 1), attempts("small", 0)]
    options = EvaluationConfig(samples={"big": 2, "default": 1})
    record = {"kind": "evaluation", "when": "before", **summarise(groups, options)}
    console = Console(file=io.StringIO(), width=100)
    terminal.show_evaluation(record, console=console)
    first, second, big, small = console.file.getvalue().splitlines()
    assert first.startswith("before: avg@n 0.500")
    assert second.startswith("  mean of 2 sources: avg@n 0.500 +- n/a (2 tasks)")
    assert big.startswith("  big: avg@2 1.000")
    assert small.startswith("  small: avg@1 0.000")
    parts = [(change.metric, change.part) for change in compare([record, record])]
    assert parts == [
        ("avg@n", ""), ("avg@n", "mean over sources"), ("avg@2", "big"), ("pass@2", "big"),
        ("avg@1", "small"), ("pass@1", "small"),
    ]  # fmt: skip


def test_a_subset_is_drawn_by_its_seed_and_the_tasks_names():
    tasks = [Task(f"t{i}", "?", "1", {"source": "ab"[i % 2]}) for i in range(40)]
    drawn = held_out(tasks, per_source=5, seed=3)
    names = {task.id for task in drawn}
    assert [task.source for task in drawn].count("a") == 5
    assert drawn == sorted(drawn, key=tasks.index)
    assert drawn != held_out(tasks, per_source=5)
    assert names != {task.id for task in held_out(tasks, per_source=5, seed=4)}
    assert names == {task.id for task in held_out(tasks[::-1], per_source=5, seed=3)}
    assert held_out(tasks, per_source=99, seed=3) == tasks


def test_a_config_draws_its_subset(model_folder):
    given = {"tasks": 2, "subset_seed": 5}
    run = build(validate(Config.model_validate(config_of(model_folder, evaluation=given))))
    wanted = held_out(Sources(12).tasks("test"), per_source=2, seed=5)
    assert [task.id for task in run.test] == [task.id for task in wanted]
    asyncio.run(run.close())
