"""Small recipes begin where the learning table says, and learn: their models know their prompts."""

from __future__ import annotations

import json

import pytest
import yaml

from rolecall.config.load import find
from tests.recipes.test_recipes import prove_learning
from tests.sandbox.places import working_sandbox
from tests.support.evidence import leave_to_evidence
from tests.toy import command

pytestmark = pytest.mark.slow

SHORT = ("evaluation.tasks=40", "evaluation.samples=4", "evaluation.k=4")


# What each recipe's team scored before it was trained; the weights of stages come of training.
BEFORE = {
    row["recipe"]: row["before"]
    for row in json.loads(prove_learning.RESULTS.read_text())
    if row["seed"] == 0 and "stages" not in yaml.safe_load(find(row["recipe"]).read_text())
}


@pytest.mark.parametrize("recipe", leave_to_evidence(BEFORE, keep=["tools", "math_alone"]))
def test_a_small_recipe_begins_with_the_score_of_the_learning_table(recipe, tmp_path):
    """A word that changes in a prompt, in a tool's docstring too, is one that no model has seen."""
    output = tmp_path / "score.json"
    assert command("eval", recipe, "--json", output) == 0
    mean, margin = prove_learning.score(json.loads(output.read_text()))
    before, recorded_margin = BEFORE[recipe]
    assert abs(mean - before) <= margin + recorded_margin


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("recipe", "steps"), [("search_alone", 10), ("debate", 7), ("math_alone", 5)]
)
def test_a_small_recipe_learns(recipe, steps, tmp_path):
    output = tmp_path / "run"
    assert command("train", recipe, f"trainer.steps={steps}", *SHORT, "--output", output) == 0
    summary = json.loads((output / "summary.json").read_text())
    scores = {when: prove_learning.score(summary[when]) for when in ("before", "after")}
    assert prove_learning.learned(scores)


@pytest.mark.evidence
def test_one_agent_learns_each_of_three_kinds_of_work(tmp_path):
    working_sandbox()
    output = tmp_path / "run"
    assert command("train", "multitask", "--output", output) == 0
    summary = json.loads((output / "summary.json").read_text())
    before, after = (summary[when]["by_source"] for when in ("before", "after"))
    assert {*before} == {"function", "expression", "word", "one"}
    gains = {kind: after[kind]["avg@8"] - before[kind]["avg@8"] for kind in before}
    assert min(gains.values()) > 0.04, gains
