"""Recipes of a pretrained model: each takes a step of SFT and a step of RL."""

from __future__ import annotations

import pytest

import rolecall
from tests import toy
from tests.recipes.test_recipes import PRETRAINED
from tests.support.small_model import needs_small_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.evidence,
    needs_small_model,
]
LESS = [
    "trainer.steps=1", "trainer.warm_start.steps=1", "trainer.warm_start.rows=4",
    "rollout.groups=1", "rollout.group_size=4", "evaluation.tasks=2",
]  # fmt: skip


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_recipe_takes_a_step_of_each_stage(name, tmp_path):
    changes = [*LESS, f"rewards={{{toy.__file__}:alternate: 1.0}}"]
    rolecall.train(name, changes, output=tmp_path / "run")
    for stage in ("warm_start", "train"):
        metrics = rolecall.load_run(tmp_path / "run" / stage).metrics().to_pylist()
        steps = [row for row in metrics if row["kind"] == "step"]
        norms = [value for key, value in steps[0].items() if key.endswith("/grad_norm")]
        assert norms
        assert all(value > 0 for value in norms)
