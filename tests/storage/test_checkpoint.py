"""Whatever happens while a checkpoint is written, the pointer names a whole one."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from rolecall.config.optimizer import Optimizer
from rolecall.learners.local import LocalLearner
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from tests.toy import language_model


@pytest.fixture
def learners(model_folder) -> dict[str, LocalLearner]:
    model = language_model(model_folder)
    return {"a": LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)}


def test_a_full_disk_leaves_the_previous_checkpoint_usable(learners, tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, learners, states=[{}], keep=2)
    before = {n: p.detach().clone() for n, p in learners["a"].model.named_parameters()}
    with torch.no_grad():
        learners["a"].parameters[0].add_(1.0)

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(checkpoint.CheckpointError, match=r"step-2.*No space left"):
            checkpoint.save(tmp_path, 2, learners, states=[{}], keep=2)
    found = checkpoint.follow_pointer(tmp_path, checkpoint.LATEST)
    assert found == tmp_path / "step-1"
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["step-1"]
    assert checkpoint.load(found, learners) == [{}]
    assert checkpoint.checkpoint_step(found) == 1
    after = dict(learners["a"].model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_old_checkpoints_go_but_the_best_stays(learners, tmp_path):
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, learners, states=[{}], keep=2)
        if step == 2:
            checkpoint.point(tmp_path, checkpoint.BEST, step)
    names = sorted(p.name for p in tmp_path.glob("step-*"))
    assert names == ["step-2", "step-4", "step-5"]
    assert checkpoint.follow_pointer(tmp_path, checkpoint.BEST) == tmp_path / "step-2"


def test_a_pointer_to_nothing_is_no_checkpoint(tmp_path: Path):
    assert checkpoint.follow_pointer(tmp_path, checkpoint.LATEST) is None
    checkpoint.point(tmp_path, checkpoint.LATEST, 9)
    assert checkpoint.follow_pointer(tmp_path, checkpoint.LATEST) is None


READER = (
    "import sys\nfrom pathlib import Path\nfrom rolecall.storage import checkpoint\n"
    "from rolecall.storage.run_folder import RunFolder\n"
    "with checkpoint.held(RunFolder(Path(sys.argv[1])), sys.argv[2]) as found:\n"
    "    print(found.name, flush=True)\n    sys.stdin.readline()\n"
    "    print(checkpoint.damage(found) or 'whole', flush=True)\n"
)


def test_a_checkpoint_that_another_process_reads_is_removed_later(learners, tmp_path):
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, 1, learners, states=[], keep=1)
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path), "latest"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as reader:  # fmt: skip
        assert reader.stdout.readline() == "step-1\n"
        checkpoint.save(folder, 2, learners, states=[], keep=1)
        assert [path.name for path in checkpoint.list_checkpoints(folder)] == ["step-2", "step-1"]
        assert reader.communicate("\n")[0] == "whole\n"
    checkpoint.save(folder, 3, learners, states=[], keep=1)
    assert [path.name for path in checkpoint.list_checkpoints(folder)] == ["step-3"]
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step-3"]


def test_whoever_asks_for_the_latest_gets_a_whole_one_while_steps_are_saved(learners, tmp_path):
    """A reader finds the pointer, and what it names may be gone before it is opened."""
    folder, run = tmp_path / "checkpoints", RunFolder(tmp_path)
    checkpoint.save(folder, 1, learners, states=[], keep=1)
    done = threading.Event()

    def train() -> None:
        for step in range(2, 12):
            checkpoint.save(folder, step, learners, states=[], keep=1)
        done.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    found = set()
    while not done.is_set():
        with checkpoint.held(run, checkpoint.LATEST) as saved:
            assert checkpoint.damage(saved) == ""
            found.add(saved.name)
    trainer.join()
    assert len(found) > 1


def test_an_old_checkpoint_that_is_a_link_is_dropped_and_what_it_names_stays(learners, tmp_path):
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    checkpoint.save(folder, 1, learners, states=[], keep=1)
    (folder / "step-1").rename(elsewhere)
    (folder / "step-1").symlink_to(elsewhere)
    for step in (2, 3):
        checkpoint.save(folder, step, learners, states=[], keep=1)
    assert [path.name for path in checkpoint.list_checkpoints(folder)] == ["step-3"]
    assert checkpoint.damage(elsewhere) == ""


def test_an_old_checkpoint_that_cannot_be_removed_does_not_end_the_run(
    learners, tmp_path, monkeypatch, caplog
):
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, 1, learners, states=[], keep=1)
    monkeypatch.setattr(checkpoint, "_drop", _refuse)
    checkpoint.save(folder, 2, learners, states=[], keep=1)
    assert "step-1 cannot be removed: Read-only file system" in caplog.text
    assert checkpoint.follow_pointer(folder, checkpoint.LATEST) == folder / "step-2"


def _refuse(path: Path) -> None:
    raise OSError("Read-only file system")


def test_what_a_killed_save_or_removal_has_left_goes_with_the_next_save(learners, tmp_path):
    folder = tmp_path / "checkpoints"
    for name in (".tmp-step-7", ".tmp-old-step-1"):
        (folder / name / "a").mkdir(parents=True)
    checkpoint.save(folder, 2, learners, states=[], keep=1)
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step-2"]
