"""A fork goes on from a checkpoint of another run, which stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecall.runtime.checksums import sha256
from tests.toy import command, relay_config, write

LESS = ["trainer.steps=3", "trainer.save_every=1", "trainer.keep=5", "evaluation.tasks=0"]


@pytest.fixture(scope="module")
def trained(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    config = write(folder / "team.yaml", relay_config(model_folder))
    assert command("train", config, *LESS, "--output", folder / "mine") == 0
    return folder / "mine"


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path) for path in files}


def weights(folder: Path) -> dict[str, str]:
    return {name: sha for name, sha in contents(folder).items() if name.endswith(".safetensors")}


def test_a_fork_with_the_same_keys_comes_to_the_same_weights(trained, tmp_path):
    before = contents(trained)
    fork = tmp_path / "fork"
    assert command("train", trained, "--checkpoint", "step-2", "--output", fork) == 0
    assert contents(trained) == before
    assert weights(fork / "checkpoints/step-3") == weights(trained / "checkpoints/step-3")
    record = json.loads((fork / "fork.json").read_text())
    assert (record["run"], record["step"]) == (str(trained.resolve()), 2)
    assert json.loads((fork / "summary.json").read_text())["fork"] == record
    steps = [json.loads(line) for line in (fork / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["kind"] == "step"] == [1, 2, 3]


def test_a_fork_takes_other_keys_and_has_a_folder_of_its_own(trained):
    changes = ["trainer.steps=2", "algorithm=rloo"]
    for name in ("mine-step-1", "mine-step-1-2"):
        assert command("train", trained, *changes, "--checkpoint", "step-1") == 0
        assert (trained.parent / name / "checkpoints/step-2").is_dir()
    chapters = (trained.parent / "mine-step-1/chapters.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in chapters)
    assert first == {"after_step": 1, "changes": {"fork": [str(trained.resolve()), "step-1"]}}
    assert second["changes"]["algorithm.name"][1] == "rloo"
    assert command("train", trained.parent / "mine-step-1", "trainer.steps=3") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--checkpoint", "step-9"], "has no checkpoint 'step-9' (it has: step-1, step-2, step-3)"),
        (["--checkpoint", "step-3"], "trainer.steps: step-3 has 3 steps behind it, and 3 are"),
        (["--checkpoint", "step-1", "--resume"], "--checkpoint begins a new run, and --resume"),
    ],
)
def test_a_fork_that_cannot_begin_is_refused_in_one_line(trained, capsys, arguments, said):
    assert command("train", trained, *arguments) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_a_fork_needs_a_run_and_an_empty_folder(trained, capsys):
    assert command("train", "math", "--checkpoint", "best") == 2
    assert "--checkpoint: math is no run folder" in capsys.readouterr().err
    assert command("train", trained, "--checkpoint", "step-1", "--output", trained) == 2
    assert "is not empty; choose another --output for the fork" in capsys.readouterr().err
