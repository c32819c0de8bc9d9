"""The dry form of `make gpu`: a CPU stands in for the GPU, and each part keeps its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import checks, results
from benchmarks.gpu.__main__ import run_part
from benchmarks.gpu.checks import PARTS, Machine, load_checks
from benchmarks.gpu.page import write_page
from benchmarks.gpu.results import Result, Results
from tests.support.evidence import leave_to_evidence

ROOT = Path(__file__).resolve().parents[2]
# What is run of each part here; the whole dry form takes minutes.
ONLY = {
    "attention": "odd", "engine": "Qwen3_", "learner": "update_of_grpo_with_kl", "heads": "",
    "memory": "", "ranks": "fsdp_adapter", "runs": "the_doctor", "speed": "adapter",
}  # fmt: skip
MACHINE = {"device": "a stand-in", "commit": "abc"}


def run_gpu(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--dry", "--output", str(output), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    leave_to_evidence(["attention", "engine", "learner", "heads"], keep=["attention", "heads"]),
)
def test_checks_of_a_part_pass_on_the_stand_in(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_part(part, Path("gpu.json"), machine=MACHINE, is_dry=True, only=ONLY[part])
    found = results.load(Path("gpu.json"), machine=MACHINE).results
    assert "passed" in {one.status for one in found.values()} <= {"passed", "skipped"}


@pytest.mark.slow
@pytest.mark.evidence
@pytest.mark.parametrize("part", PARTS)
def test_each_part_passes_on_the_stand_in(part, tmp_path):
    done = run_gpu(tmp_path / "gpu.json", "--parts", part, "--only", ONLY[part])
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "gpu.json").read_text())
    statuses = {one["status"] for one in content["results"].values()}
    assert statuses <= {"passed", "skipped"}
    assert part == "memory" or "passed" in statuses


@pytest.mark.slow
def test_what_has_passed_is_not_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    printed = []
    for only in ("frozen", ""):
        run_part("heads", Path("gpu.json"), machine=MACHINE, is_dry=True, only=only)
        printed.append(capsys.readouterr().out)
    name = "heads/a_frozen_head_has_the_gradient_of_autograd: passed"
    assert name in printed[0]
    assert name not in printed[1]
    assert "heads/chunks_equal_the_whole: passed" in printed[1]


def test_every_check_has_a_name_of_its_own_and_every_part_has_some():
    names = [name for part in PARTS for name in load_checks(part)]
    assert len(names) == len(set(names)) > 80


def test_results_of_another_machine_or_commit_are_left_out(tmp_path):
    kept = Results(MACHINE)
    kept.add(Result("heads", "one", "passed", 1.0))
    kept.save(tmp_path / "gpu.json")
    assert results.load(tmp_path / "gpu.json", machine=MACHINE).has_passed("heads", "one")
    other = MACHINE | {"commit": "def"}
    assert not results.load(tmp_path / "gpu.json", machine=other).results


def test_a_page_lists_figures_and_the_first_lines_of_each_error(tmp_path):
    kept = Results(MACHINE)
    kept.add(Result("speed", "fast", "passed", 1.0, {"tokens/s": 31415.0}))
    kept.add(Result("engine", "broken", "failed", 2.0, error="RuntimeError: no kernel\nmore"))
    kept.add(Result("memory", "held", "skipped", 0.0, error="there is no GPU"))
    write_page(kept, tmp_path / "gpu.md")
    page = (tmp_path / "gpu.md").read_text()
    assert "| `speed/fast` | passed | 1.0 | tokens/s 3.142e+04 |" in page
    assert "| `memory/held` | skipped | 0.0 | there is no GPU |" in page
    assert "`engine/broken`:\n\n    RuntimeError: no kernel\n    more\n" in page


def test_a_check_that_needs_a_gpu_is_skipped_with_its_reason(tmp_path):
    machine = Machine(checks.torch.device("cpu"), True, tmp_path)
    with pytest.raises(checks.SkippedError, match="needs kernels"):
        machine.require_gpu("it needs kernels")
