"""Recipes of a pretrained model: each takes a step of SFT and a step of RL."""

from __future__ import annotations

import json

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


def row(number: int) -> dict[str, str]:
    """Return a row of the form of GSM8K."""
    twice = 2 * number
    return {
        "question": f"Ann has {number} pens and Ben has twice as many. How many has Ben?",
        "answer": f"Ben has 2 * {number} = <<2*{number}={twice}>>{twice} pens.\n#### {twice}",
    }


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_recipe_takes_a_step_of_each_stage(name, tmp_path):
    changes = [*LESS, f"rewards={{{toy.__file__}:alternate: 1.0}}"]
    if name == "real_gsm8k":
        rows = tmp_path / "rows.jsonl"
        rows.write_text("".join(json.dumps(row(number)) + "\n" for number in range(8)))
        changes += [f"environment.train={rows}", f"environment.test={rows}"]
    rolecall.train(name, changes, output=tmp_path / "run")
    for stage in ("warm_start", "train"):
        metrics = rolecall.load_run(tmp_path / "run" / stage).metrics().to_pylist()
        steps = [row for row in metrics if row["kind"] == "step"]
        norms = [value for key, value in steps[0].items() if key.endswith("/grad_norm")]
        assert norms
        assert all(value > 0 for value in norms)
