"""An evaluation that was killed goes on where it stopped, and comes to the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.rollout import evaluation
from rolecall.rollout.evaluation import EvaluationOutputs
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.evaluation_journal import EvaluationJournal, evaluation_journal
from rolecall.storage.journal import Journal
from rolecall.storage.run_folder import RunFolder
from rolecall.training.trainer import Trainer
from tests.killed_run import Silent
from tests.toy import command, episode, solo_config, turn, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ASKED = ["evaluation.tasks=8", "evaluation.samples=3", "evaluation.k=1"]  # 24 attempts
SIZE = 7  # of a round: two tasks


@pytest.fixture(scope="module")
def trained(model_folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    config = solo_config(model_folder, trainer={"steps": 1}, evaluation={"tasks": 0})
    assert command("train", write(place / "c.yaml", config), "--output", place / "run") == 0
    return place / "run"


def found_by(run: Path, *options: str) -> tuple[dict, list[tuple]]:
    """What `rolecall eval` finds and keeps, without clock times."""
    assert command("eval", run, *options) == 0
    record = json.loads((run / "evaluated/evaluation-000001.json").read_text())
    rows = pq.read_table(run / "evaluated/evaluation-000001.parquet").to_pylist()
    kept = {name: value for name, value in record.items() if not name.startswith("time/")}
    return kept, sorted((row["task"], row["attempt"], row["text"]) for row in rows)


def counted(monkeypatch) -> list[str]:
    """The attempts that are journaled from here on."""
    whole, names = Journal.append, []

    def append(self, episode):
        names.append(episode.id)
        whole(self, episode)

    monkeypatch.setattr(Journal, "append", append)
    return names


@pytest.mark.evidence
@pytest.mark.parametrize(("deterministic", "again"), [(True, 24 - 6), (False, 24 - 10)])
def test_an_evaluation_that_was_killed_comes_to_the_same(
    trained, monkeypatch, deterministic, again
):
    options = [*ASKED, f"trainer.deterministic={str(deterministic).lower()}"]
    monkeypatch.setattr(evaluation, "ROUND", SIZE)
    wanted = found_by(trained, *options)
    assert not list((trained / "evaluated").glob("unfinished-*"))
    script = [
        sys.executable,
        "-m",
        "tests.killed_evaluation",
        "eval",
        "11",
        str(SIZE),
        str(trained),
    ]
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([*script, *options], env={**os.environ, **path}, cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    [unfinished] = (trained / "evaluated").glob("unfinished-*")
    names = counted(monkeypatch)
    assert found_by(trained, *options) == wanted
    assert len(names) == again  # a round of a deterministic engine is played as a whole
    assert not unfinished.exists()


def test_other_keys_tasks_and_weights_have_journals_of_their_own(model_folder, tmp_path):
    def name(of: str = "test-000001 a", answer: object = 1, **changes) -> str:
        config = Config.model_validate(solo_config(model_folder, **changes))
        task = episode(0, [], {}).task
        tasks = [type(task)(task.id, task.prompt, answer)]
        return evaluation_journal(tmp_path, config, tasks, of=of).folder.name

    same = name()
    assert name(trainer={"steps": 99}, output="elsewhere") == same
    others = {
        name(of="test-000001 b"),
        name(answer=2),
        name(evaluation={"sampling": {"temperature": 0.5}}),
        name(trainer={"seed": 1}),
    }
    assert len(others | {same}) == 5


def test_two_processes_are_not_at_one_evaluation(tmp_path):
    said = "another process is at this evaluation"
    with EvaluationJournal(tmp_path / "x"), pytest.raises(ConfigError, match=said):
        EvaluationJournal(tmp_path / "x").__enter__()
    assert not (tmp_path / "x").exists()  # nothing was played


def test_attempts_that_failed_are_made_again(tmp_path):
    journal = EvaluationJournal(tmp_path / "x")
    with journal:
        for number, error in ((0, None), (1, "ConnectionError: away")):
            made = episode(number, [turn()], {}, task="t")
            made.scores["team"], made.error = 1.0, error
            journal.round(1).append(made)
        around = EvaluationOutputs(journals=journal)
        playing = evaluation._Evaluation(_context(), EvaluationConfig(samples=2), "test", around)
        left, finished = playing._taken_over(journal.round(1), [made.task])
    assert [task.id for task in left] == ["t"]
    assert [one.attempt for one in finished] == [0]


def _context():
    from rolecall.rollout.episodes import RolloutContext

    return RolloutContext({}, None, {}, object(), {})


def test_a_training_goes_on_with_the_evaluation_that_was_cut_short(
    model_folder, tmp_path, monkeypatch
):
    given = {"tasks": 4, "samples": 2, "k": 2}
    config = solo_config(
        model_folder, trainer={"steps": 1, "deterministic": False}, evaluation=given
    )

    def train(folder: Path) -> list[dict]:
        made = RunFolder(folder)
        plan = validate(Config.model_validate(config))
        with made.hold_started(plan.config):
            asyncio.run(Trainer(build(plan), made, display=Silent()).train())
        return made.read_metrics()

    whole = Journal.append

    def cut(self, played):
        if len(names) == 3:
            raise OSError("the disk is gone")
        whole(self, played)
        names.append(played.id)

    names: list[str] = []
    monkeypatch.setattr(Journal, "append", cut)
    with pytest.raises(OSError, match="the disk is gone"):
        train(tmp_path / "run")
    monkeypatch.setattr(Journal, "append", whole)
    names = counted(monkeypatch)
    before, *_, after = train(tmp_path / "run")
    assert [record["when"] for record in (before, after)] == ["before", "after"]
    assert sum(name.startswith("evaluation:") for name in names) == 8 - 3 + 8
    assert not list((tmp_path / "run/journal").glob("unfinished-*"))
    rows = pq.read_table(tmp_path / "run/evaluation-000000.parquet")
    assert len(rows) == 8
