"""The whole command on the model inside the package: it trains, evaluates, resumes and reports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from rolecall_lab.reproduce import drmas
from tests.support.evidence import leave_to_evidence
from tests.toy import command

pytestmark = pytest.mark.slow

SHORT = [
    "rollout.groups=1", "rollout.group_size=4", "trainer.steps=2", "evaluation.tasks=1",
    "evaluation.samples=2", "evaluation.k=2", "trainer.save_every=1",
]  # fmt: skip


def files(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if path.name in {"metrics.jsonl", "weights.json"} or path.name.startswith("evaluation-")
    }


@pytest.mark.parametrize("seeds", leave_to_evidence([1, 2], keep=[]))
def test_a_figure_is_trained_shown_and_not_trained_again(seeds, tmp_path, capsys):
    asked = ["reproduce", "drmas", "--figure", 1, "--seeds", seeds, "--output", tmp_path, *SHORT]
    assert command(*asked) == 0
    names = [setting.name for setting in drmas.figure(1, "small")]
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == names
    for name in names:
        assert [run["seed"] for run in results[name]] == list(range(seeds))
        for run in results[name]:
            assert set(run["norms"]) == {"solver", "verifier"}
            assert [len(norms) for norms in run["norms"].values()] == [2, 2]
            assert len(run["scores"]) == 2
    report = (tmp_path / "report.md").read_text()
    assert report.startswith("## Gradient norms in maths")
    assert report.count("| solver |") == report.count("| verifier |") == 2
    with Image.open(tmp_path / "figure-1.png") as image:
        assert image.size[0] > 1500
        assert len(image.convert("RGB").getcolors(2**20)) > 50
    before = files(tmp_path)
    capsys.readouterr()
    assert command(*asked) == 0
    assert files(tmp_path) == before  # nothing was trained or evaluated again
    assert json.loads((tmp_path / "results.json").read_text()) == results


@pytest.mark.evidence
def test_a_command_that_is_killed_goes_on_where_it_was(tmp_path):
    """Killed in the second run: the first one stays, the second goes on, and all agrees."""
    asked = ["reproduce", "drmas", "--figure", "1", "--seeds", "1", *SHORT, "--output"]
    assert command(*asked, tmp_path / "straight") == 0
    first, second = (setting.name for setting in drmas.figure(1, "small"))
    killed = tmp_path / "killed"
    killed_when(asked, killed, killed / "runs" / second / "seed-0/checkpoints/step-1")
    before = files(killed / "runs" / first)
    assert command(*asked, killed) == 0
    assert files(killed / "runs" / first) == before
    straight, found = (
        json.loads((of / "results.json").read_text()) for of in (tmp_path / "straight", killed)
    )
    for name in (first, second):
        [one], [other] = straight[name], found[name]
        assert one.pop("seconds") > 0
        assert other.pop("seconds") > 0
        assert one == other


def killed_when(asked: list[str], output: Path, sign: Path) -> None:
    """Start the command in a process of its own, and kill it as soon as a file is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rolecall", *asked, str(output)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not sign.exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--table", "4"], "--table 4: there are 1, 2, 3 to reproduce"),
        (["--figure", "2"], "--figure 2: there are 1, 3, 4 to reproduce"),
        (["--seeds", "0"], "--seeds 0: write 1 to 10"),
        (["--seeds", "11"], "--seeds 11: write 1 to 10"),
        (["--memory", "80"], "--gpus and --memory name another machine; add --check"),
        (["trainer.stepz=2", "--check"], "stepz: unknown key"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anything_runs(asked, told, tmp_path, capsys):
    output = ["--output", tmp_path]
    figure = [] if "--table" in asked or "--figure" in asked else ["--figure", "1"]
    assert command("reproduce", "drmas", *figure, *asked, *output) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_another_papers_result_is_shown(capsys):
    assert command("reproduce", "matpo") == 0
    out = capsys.readouterr().out
    assert "2510.04678" in out
    assert "2 of 2 claims hold" in out


def test_a_paper_that_is_not_there_is_told_with_the_nearest(capsys):
    assert command("reproduce", "qmixx") == 2
    assert "no paper 'qmixx'" in capsys.readouterr().err
