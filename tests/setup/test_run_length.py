"""The steps of a run whose length is given in epochs."""

import json

import numpy as np
import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.environments.math.environment import MathEnvironment
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from tests.setup.test_prompt_lengths import load_config as load_config_of_one_step
from tests.toy import command


def load_config(rows, *overrides):
    load_config_of_one_step(rows)
    file = rows.with_name("run.yaml")
    file.write_text(file.read_text().replace("trainer: {steps: 1}\n", ""))
    return load(file, list(overrides))


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    tasks = MathEnvironment(level=2).tasks("train")
    lines = [json.dumps({"question": tasks[n].prompt, "answer": tasks[n].answer}) for n in range(7)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["trainer={epochs: 1}"], 7),
        (["trainer={epochs: 2}", "rollout.groups=2"], 6),  # the seventh task fills no step
        (["trainer={epochs: 0.5}", "rollout.groups=2"], 1),
        (["trainer={epochs: 0.01}"], 1),
        (["trainer={epochs: 3, steps: 4}"], 4),
        (["trainer={epochs: 3, steps: 100}"], 21),
        (
            ["trainer={epochs: 1}", "evaluation={validation: 2, every: 3}"],
            5,
        ),  # those are not trained on
    ],
)
def test_an_epoch_has_the_whole_steps_of_its_tasks(rows, overrides, steps):
    run = build(validate(load_config(rows, *overrides)))
    assert run.config.trainer.steps == steps


def test_an_epoch_of_a_data_set_is_one_of_its_rows(rows):
    turns = rows.with_name("turns.jsonl")
    turns.write_text("\n".join(
        json.dumps({"agent": "solver", "prompt": f"{n}?", "completion": "1"}) for n in range(5)
    ))  # fmt: skip
    data = ["algorithm=sft", f"rollout.data={turns}", "rollout.group_size=1", "rollout.groups=2"]
    run = build(validate(load_config(rows, "trainer={epochs: 2}", *data)))
    assert run.config.trainer.steps == 4


def test_epochs_of_tasks_without_end_are_refused(rows):
    config = load_config(rows, "trainer={epochs: 1}", "environment={name: math}")
    with pytest.raises(ConfigError, match=r"trainer\.epochs: generated tasks have no end"):
        build(validate(config))


def test_a_run_of_epochs_is_recorded_with_its_steps_and_goes_on_with_more(rows, capsys):
    file = rows.with_name("run.yaml")
    load_config(rows)
    small = [
        "rollout.groups=3",
        "rollout.group_size=4",
        "team.solver.system=Solve the problem. Put the answer in \\boxed{}.",
    ]
    folder = RunFolder(rows.with_name("run"))
    for epochs, steps in ((1, 2), (1, 2), (2, 4)):
        words = [f"trainer={{epochs: {epochs}}}", *small, "--output", str(folder.path)]
        assert command("train", str(file), *words) == 0, capsys.readouterr().err
        assert folder.num_steps() == steps
        assert load(folder.config).trainer.steps == steps
    assert json.loads(folder.chapters.read_text()) == {
        "after_step": 2,
        "changes": {"trainer.epochs": [1.0, 2.0], "trainer.steps": [2, 4]},
    }


def test_a_subset_of_the_tasks_is_drawn_by_the_seed(rows):
    subsets = []
    for seed in (0, 0, 3):
        config = load_config(rows, f"trainer={{epochs: 2, seed: {seed}}}", "rollout.max_tasks=3")
        run = build(validate(config))
        assert run.config.trainer.steps == 6
        subsets.append([task.id for task in run.sampler.train])
    assert subsets[0] == subsets[1] != subsets[2]
    assert all(len(names) == 3 and names == sorted(names) for names in subsets)
    np.random.seed(3)  # as MAPPA draws its problems
    drawn = sorted(np.random.choice(7, 3, replace=False).tolist())
    assert subsets[2] == [f"rows-{number + 1}" for number in drawn]
    every = build(validate(load_config(rows, "trainer={epochs: 1}", "rollout.max_tasks=100")))
    assert len(every.sampler.train) == 7


def test_a_subset_of_tasks_without_end_is_refused(rows):
    config = load_config(rows, "rollout.max_tasks=3", "environment={name: math}")
    with pytest.raises(ConfigError, match=r"rollout\.max_tasks has no effect"):
        build(validate(config))
