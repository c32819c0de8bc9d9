"""A run that was killed while its folder was made is started again by the same command."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.evidence import leave_to_evidence
from tests.toy import command, solo_config, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from rolecall.cli import main

count = int(sys.argv[1])

def killed(whole):
    def wrapped(*arguments, **options):
        global count
        under = "run" in str(arguments[0] if not isinstance(arguments[0], int) else "")
        if under:
            count -= 1
            if count < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **options)
    return wrapped

os.mkdir = killed(os.mkdir)
os.replace = killed(os.replace)
sys.argv = ["rolecall", "train", *sys.argv[2:]]
main.main()
"""


@pytest.fixture
def config(model_folder) -> dict:
    return solo_config(model_folder, trainer={"steps": 1}, evaluation={"tasks": 0})


def killed_start(count: int, *arguments: object, cwd: Path) -> bool:
    """Whether a start was killed before its `count`-th folder or file of the run was made."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(count), *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )  # fmt: skip
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    return done.returncode != 0


@pytest.mark.evidence
@pytest.mark.parametrize("count", range(1, 5))
def test_a_start_that_is_killed_at_any_point_is_started_again(count, config, tmp_path):
    file = write(tmp_path / "c.yaml", config)
    assert killed_start(count, file, "--output", tmp_path / "run", cwd=tmp_path)
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert command("train", file, "--output", tmp_path / "run") == 0
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("left", leave_to_evidence([(), ("config.yaml.tmp",)], keep=[()]))
def test_an_unnamed_run_takes_the_folder_that_a_killed_start_has_left(
    left, config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "mine.yaml", config)
    folder = tmp_path / "runs" / "mine"
    for name in ("journal", "episodes"):
        (folder / name).mkdir(parents=True)
    for name in (".lock", *left):
        (folder / name).write_text("half of a con")
    with (folder / ".lock").open("a") as lock:  # another process is making it just now
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert command("train", file) == 0
        assert (tmp_path / "runs" / "mine-2" / "summary.json").exists()
    assert command("train", file, "policies.a.base=nothing") == 2
    assert command("train", file, "trainer.seed=7") == 0
    assert (folder / "summary.json").exists()


@pytest.mark.evidence
def test_a_staged_run_goes_on_after_a_kill_at_any_of_its_first_points(config, tmp_path):
    stages = [{"name": "one"}, {"name": "two"}]
    file = write(tmp_path / "c.yaml", config | {"stages": stages})
    for left, content in (("stages.yaml.tmp", "stag"), (".lock", "process 1")):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / left).write_text(content)
    assert command("train", file, "stages.two.trainer.steps=1", "--output", tmp_path / "run") == 0
    again = tmp_path / "again"
    assert command("train", file, "--output", again) == 0
    stage = again / "two"
    for entry in stage.rglob("*"):
        if not entry.is_dir() or entry.is_symlink():
            entry.unlink()
    for folder in sorted(filter(Path.is_dir, stage.rglob("*")), reverse=True):
        if folder.parent != stage:
            folder.rmdir()
    (stage / ".lock").write_text("process 1")
    (stage / "config.yaml.tmp").write_text("half")
    assert command("train", again) == 0
    assert (stage / "summary.json").exists()


def test_a_folder_with_anything_else_is_still_refused(config, tmp_path, capsys):
    file = write(tmp_path / "c.yaml", config)
    for name in ("notes.txt", "journal/mine.txt"):
        place = tmp_path / name.replace("/", "-")
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text("mine")
        assert command("train", file, "--output", place) == 2
        assert "is not empty and not a run folder" in capsys.readouterr().err
    assert yaml.safe_load(file.read_text())["trainer"]["steps"] == 1
