"""Small recipes learn, as they stand but for fewer steps: a searcher, a debate, a solver."""

from __future__ import annotations

import json

import pytest

from tests.recipes.test_recipes import prove_learning
from tests.toy import command

pytestmark = [pytest.mark.slow, pytest.mark.evidence]

SHORT = ("evaluation.tasks=40", "evaluation.samples=4", "evaluation.k=4")


@pytest.mark.parametrize(
    ("recipe", "steps"), [("search_alone", 10), ("debate", 7), ("math_alone", 5)]
)
def test_a_small_recipe_learns(recipe, steps, tmp_path):
    output = tmp_path / "run"
    assert command("train", recipe, f"trainer.steps={steps}", *SHORT, "--output", output) == 0
    summary = json.loads((output / "summary.json").read_text())
    scores = {when: prove_learning.score(summary[when]) for when in ("before", "after")}
    assert prove_learning.learned(scores)
