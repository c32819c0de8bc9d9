"""Training and evaluating from Python, with and without an event loop that runs already."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

import rolecall
from rolecall.config.load import load
from rolecall.core.errors import ConfigError, StoppedError
from rolecall.runs import train as command
from rolecall.runs.live_config import LiveConfig
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from tests.toy import relay_config, write

pytestmark = pytest.mark.slow


def test_a_mapping_is_trained_and_its_run_evaluated(model_folder, tmp_path):
    config = relay_config(model_folder)
    summary = rolecall.train(config, {"trainer.steps": 2}, output=tmp_path / "run")
    assert summary == json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["steps"] == 2
    found = rolecall.evaluate(tmp_path / "run", ["evaluation.tasks=1"])
    assert found["num_tasks"] == 1


def test_in_a_notebook_a_loop_runs_already(model_folder, tmp_path):
    file = write(tmp_path / "team.yaml", relay_config(model_folder))

    async def cell() -> dict:
        return rolecall.train(file, {"trainer.steps": 1}, output=str(tmp_path / "run"))

    assert asyncio.run(cell())["steps"] == 1
    with pytest.raises(ConfigError, match=r"trainer\.stepz"):
        rolecall.train(file, {"trainer.stepz": 1})


@pytest.mark.evidence
def test_a_run_in_a_thread_is_stopped_and_saves(model_folder, tmp_path):
    """As Ctrl-C in a notebook does it, also where it comes before the run has begun."""
    file = write(tmp_path / "team.yaml", relay_config(model_folder))
    stop = command.Stop()
    stop.end_now()
    told: list[BaseException] = []

    def work() -> None:
        try:
            command.train(str(file), [], output=tmp_path / "run", resume=False, stop=stop)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(told[0], StoppedError)
    assert not (tmp_path / "run/summary.json").exists()
    assert command.train(str(tmp_path / "run"), [], output=None, resume=False)["steps"] == 3


def test_overrides_are_mappings_or_what_the_command_line_takes():
    given = {"trainer.steps": 5, "policies.a.optimizer": None, "trackers": ["wandb"], "a.b": True}
    assert LiveConfig().overrides(given) == [
        "trainer.steps=5", "policies.a.optimizer=null", 'trackers=["wandb"]', "a.b=true",
    ]  # fmt: skip
    assert LiveConfig().overrides(["trainer.steps=5"]) == ["trainer.steps=5"]


def test_no_module_stands_where_a_function_is_exported():
    assert callable(rolecall.train)
    assert callable(rolecall.evaluate)
    assert {"train", "evaluate"} <= set(dir(rolecall))


def test_an_assembled_run_is_printed_in_a_line(model_folder, tmp_path):
    run = build(validate(load(write(tmp_path / "team.yaml", relay_config(model_folder)))))
    assert repr(run).startswith("<Run of left: a, right: a, last: b; ")
    assert len(repr(run)) < 300
