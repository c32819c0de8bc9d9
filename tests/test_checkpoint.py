"""Whatever happens while a checkpoint is written, the pointer names a whole one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from rolecall.config.optimizer import Optimizer
from rolecall.learners.local import LocalLearner
from rolecall.storage import checkpoint
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
    found = checkpoint.pointed(tmp_path, checkpoint.LATEST)
    assert found == tmp_path / "step-1"
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["step-1"]
    assert checkpoint.load(found, learners) == [{}]
    assert checkpoint.step_of(found) == 1
    after = dict(learners["a"].model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_old_checkpoints_go_but_the_best_stays(learners, tmp_path):
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, learners, states=[{}], keep=2)
        if step == 2:
            checkpoint.point(tmp_path, checkpoint.BEST, step)
    names = sorted(p.name for p in tmp_path.glob("step-*"))
    assert names == ["step-2", "step-4", "step-5"]
    assert checkpoint.pointed(tmp_path, checkpoint.BEST) == tmp_path / "step-2"


def test_a_pointer_to_nothing_is_no_checkpoint(tmp_path: Path):
    assert checkpoint.pointed(tmp_path, checkpoint.LATEST) is None
    checkpoint.point(tmp_path, checkpoint.LATEST, 9)
    assert checkpoint.pointed(tmp_path, checkpoint.LATEST) is None
