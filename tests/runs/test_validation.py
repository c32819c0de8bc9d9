"""The best checkpoint is chosen on tasks that are neither trained on nor in the test split."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.types import Task
from rolecall.environments.math.environment import MathEnvironment
from rolecall.environments.mixed import Mixture
from rolecall.environments.validation import identity, split
from rolecall.monitor import report, summary
from rolecall.monitor.comparison import compare
from rolecall.monitor.live import evaluation_line
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from tests.cli.test_cli import rolecall
from tests.monitor.runs_for_tests import evaluation_record, make_run, step_record
from tests.runs.test_durable import train
from tests.runs.test_resume import metrics
from tests.toy import Letters, solo_config, write

pytestmark = pytest.mark.slow

EVALUATION = {"tasks": 2, "samples": 2, "k": 2, "every": 1, "validation": 4}


class Words(Letters):
    """Each task has a question of its own, but for every tenth, which repeats another's."""

    def tasks(self, split):
        names = [f"{split} {i - 1 if i % 10 == 9 else i}" for i in range(self.size)]
        return [
            Task(f"{split}-{i}", name, int(name.split()[1]) % 3, {"source": "letters"})
            for i, name in enumerate(names)
        ]


class WithValidation(Words):
    splits = ("train", "validation", "test")


def words_config(folder, *, kind="Words", **changes):
    config = solo_config(folder, evaluation=EVALUATION, **changes)
    config["environment"]["name"] = f"{Path(__file__).resolve()}:{kind}"
    return config


def played(folder):
    return {row["task"] for row in pq.read_table(folder / "episodes").to_pylist()}


def validated(folder):
    files = sorted(folder.glob("validation-*.parquet"))
    return {row["task"] for file in files for row in pq.read_table(file).to_pylist()}


def by_split(records):
    return {
        name: [(r["when"], r["step"]) for r in records if r.get("split") == name]
        for name in ("test", "validation")
    }


def test_held_out_tasks_are_never_trained_on_and_choose_the_best(model_folder, tmp_path):
    config = words_config(model_folder, trainer={"steps": 3}, environment={"size": 20})
    trainer = train(config, tmp_path / "run")
    records = RunFolder(tmp_path / "run").read_metrics()
    assert by_split(records) == {
        "test": [("before", 0), ("after", 3)],
        "validation": [("during", 1), ("during", 2), ("during", 3)],
    }
    held = {identity(task) for task in trainer.run.validation}
    assert len(held) == 4
    assert validated(tmp_path / "run") == {task.id for task in trainer.run.validation}
    tasks = {task.id: task for task in Words(size=20).tasks("train")}
    assert not held & {identity(tasks[name]) for name in played(tmp_path / "run")}
    scores = {r["step"]: r["avg@2"] for r in records if r.get("split") == "validation"}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert (tmp_path / "run/checkpoints/best").read_text() == f"step-{best}\n"


def test_a_resumed_run_holds_the_same_tasks_out_and_makes_up_for_lost_validations(
    model_folder, tmp_path, monkeypatch
):
    config = words_config(model_folder, trainer={"steps": 3}, environment={"size": 20})
    straight = train(config, tmp_path / "straight")
    append = RunFolder.append_metrics

    for step in (2, 3):

        def stop(self, record, step=step):
            if record.get("split") == "validation" and record["step"] == step:
                raise KeyboardInterrupt
            append(self, record)

        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "append_metrics", stop)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path / "run")
    resumed = train(config, tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "straight")
    assert resumed.run.validation == straight.run.validation
    pointers = [tmp_path / name / "checkpoints/best" for name in ("run", "straight")]
    assert pointers[0].read_text() == pointers[1].read_text()


def test_an_environments_own_validation_split_is_used_and_train_stays_whole(model_folder, tmp_path):
    config = words_config(model_folder, kind="WithValidation", environment={"size": 20})
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    assert [task.id for task in run.validation] == [f"validation-{i}" for i in range(4)]
    assert len(run.sampler.train) == 20


def test_without_a_validation_split_train_is_whole_and_test_is_all_there_is(model_folder, tmp_path):
    config = words_config(model_folder, environment={"size": 20})
    del config["evaluation"]["validation"]
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    assert (run.validation, len(run.sampler.train)) == ([], 20)


def test_the_same_tasks_are_held_out_whatever_stands_around_them():
    tasks = Words(size=40).tasks("train")
    left, held = split(tasks, per_source=5)
    assert split(tasks[::-1], per_source=5)[1][::-1] == held
    assert {identity(t) for t in left} | {identity(t) for t in held} == set(map(identity, tasks))
    assert not {identity(t) for t in left} & {identity(t) for t in held}


def test_an_endless_split_loses_only_questions_that_are_held_out():
    endless = MathEnvironment().tasks("train")
    left, held = split(endless, per_source=10)
    names = {identity(task) for task in held}
    assert len(held) == len(names) == 10
    assert len(left) == len(endless) >= ENDLESS
    first = [left[i] for i in range(2000)]
    assert not names & {identity(task) for task in first}
    assert len({task.id for task in first}) == 2000
    assert sum(left[i] != endless[i] for i in range(2000)) == sum(
        identity(endless[i]) in names for i in range(2000)
    )


def test_each_part_of_a_mixture_holds_out_its_own():
    parts = {
        name: [Task(f"{name}/{i}", f"{name} {i}", i, {"source": name}) for i in range(9)]
        for name in ("a", "b")
    }
    left, held = split(Mixture(parts, {"a": 1.0, "b": 2.0}, label="source"), per_source=3)
    assert sorted(task.source for task in held) == ["a"] * 3 + ["b"] * 3
    assert {name: len(part) for name, part in left.parts.items()} == {"a": 6, "b": 6}
    assert left.weights == {"a": 1.0, "b": 2.0}


def test_a_split_that_is_too_small_is_refused_by_its_source(model_folder, tmp_path):
    config = words_config(model_folder, environment={"size": 4})
    with pytest.raises(ConfigError, match=r"evaluation\.validation: .*'letters'.*only 4"):
        build(validate(load(write(tmp_path / "c.yaml", config))))


def test_a_validation_split_that_nothing_reads_is_refused(model_folder, tmp_path):
    config = words_config(model_folder)
    config["evaluation"]["every"] = 0
    with pytest.raises(ConfigError, match=r"evaluation.validation has no effect.*evaluation.every"):
        build(validate(load(write(tmp_path / "c.yaml", config))))


def test_the_split_may_not_change_when_a_run_goes_on(model_folder, tmp_path):
    config = words_config(model_folder, trainer={"steps": 1}, environment={"size": 20})
    train(config, tmp_path / "run")
    config["evaluation"]["validation"] = 3
    changed = load(write(tmp_path / "c.yaml", config))
    with pytest.raises(ConfigError, match=r"these keys differ: evaluation\.validation"):
        RunFolder(tmp_path / "run").check(changed)


def records_with(*splits):
    """An untrained team, two evaluations during the run, and one after it."""
    before, after = (evaluation_record(*given) for given in ((0, "before", 0.2), (3, "after", 0.4)))
    during = [evaluation_record(1, "during", 0.5), evaluation_record(3, "during", 0.3)]
    if "validation" in splits:
        during = [record | {"split": "validation"} for record in during]
        before, after = ({**record, "split": "test"} for record in (before, after))
    else:
        during = during[:1]
    return [before, step_record(1), during[0], step_record(2), step_record(3), *during[1:], after]


def test_the_summary_says_on_which_split_the_best_was_chosen():
    found = summary.summarise(records_with("test", "validation"), seed=0)
    assert found["best"] == {"step": 1, "chosen_on": "validation", "avg@8": 0.5}
    assert "best-on-test" not in found
    assert (found["before"]["split"], found["after"]["split"]) == ("test", "test")
    found = summary.summarise(records_with("test"), seed=0)
    assert found["best-on-test"] == {"step": 1, "chosen_on": "test", "avg@8": 0.5}
    assert "best" not in found


def test_before_and_after_are_compared_on_the_test_split_only():
    change = next(c for c in compare(records_with("test", "validation")) if c.metric == "avg@8")
    assert (change.before.mean, change.after.mean) == (0.2, 0.4)
    change = next(c for c in compare(records_with("test", "validation")[:4]) if not c.part)
    assert (change.before.mean, change.after) == (0.2, None)


def test_the_report_and_the_terminal_name_the_split(tmp_path):
    folder = make_run(tmp_path / "a", records=records_with("test", "validation"))
    page = report.write(folder).read_text()
    assert "after step 1" in page
    assert "validation tasks" in page
    assert "best-on-test" not in page
    folder = make_run(tmp_path / "b", records=records_with("test"))
    assert "best-on-test" in report.write(folder).read_text()
    record = {**evaluation_record(2, "during", 0.5), "split": "validation"}
    assert evaluation_line(record).startswith("during, step 2, on validation: avg@8 0.500")


def test_the_command_line_calls_a_best_checkpoint_by_how_it_was_chosen(
    model_folder, tmp_path, capsys
):
    config = words_config(model_folder, trainer={"steps": 1}, environment={"size": 20})
    path = write(tmp_path / "c.yaml", config)
    folder = tmp_path / "run"
    status, out, _ = rolecall("train", path, "--output", folder, capsys=capsys)
    assert (status, "before, on test: avg@2" in out) == (0, True)
    assert "during, step 1, on validation: avg@2" in out
    assert json.loads((folder / "summary.json").read_text())["best"]["chosen_on"] == "validation"
    status, out, error = rolecall("eval", folder, "--checkpoint", "best", capsys=capsys)
    assert status == 0, error
    assert "best, on test: avg@2" in out
