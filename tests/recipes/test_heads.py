"""The head of a recipe for real models says what is published, and what differs from that."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from rolecall.config.load import find, load, recipe_names
from tests.recipes.test_recipes import ALGORITHMS, REAL, VARIANTS, WORLDS, complete

FILE = Path(__file__).resolve().parents[2] / "docs/generate_algorithms.py"
spec = importlib.util.spec_from_file_location("generate_algorithms", FILE)
assert spec is not None
assert spec.loader is not None
generating = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = generating  # dataclasses look their module up
spec.loader.exec_module(generating)

LABELS = ("Published", "Differs", "Shows", "Hardware", "The small one on a laptop")
LABEL = re.compile(rf"# ({'|'.join(LABELS)}): ")
SIZED = [*REAL, *ALGORITHMS, *WORLDS, *VARIANTS]
MOST_WORDS = 45  # of what a line `Differs:` and those that continue it say


def read_head(name: str) -> list[tuple[str, str]]:
    """The labels of a head with what stands behind each; what stands before them has none."""
    parts: list[tuple[str, str]] = [("", "")]
    for line in find(name).read_text().splitlines():
        if not line.startswith("# "):
            break
        if match := LABEL.match(line):
            parts.append((match[1], line[match.end() :]))
        else:
            label, text = parts[-1]
            parts[-1] = (label, f"{text} {line[2:]}".strip())
    return parts


@pytest.mark.parametrize("name", SIZED)
def test_a_head_has_its_lines_once_each_in_one_order(name):
    labels = [label for label, _ in read_head(name)]
    several = [label for label in labels if label != "Differs"]
    assert several == ["", "Published", "Shows", "Hardware", "The small one on a laptop"]
    assert labels == sorted(labels, key=("", *LABELS).index)


@pytest.mark.parametrize("name", SIZED)
def test_each_difference_is_a_few_short_sentences(name):
    for label, text in read_head(name):
        if label in ("Published", "Differs"):
            assert text.endswith(".")
        if label == "Differs":
            assert not text[0].islower()
            assert len(text.split()) <= MOST_WORDS, text
            assert not re.match(r"(None|Nothing)\b(?! is)", text), "say nothing instead"


@pytest.mark.parametrize("name", SIZED)
def test_a_head_names_recipes_that_there_are(name):
    named = re.findall(r"\b(?:\w+_(?:math|search|team|coach|\d+x?\d*gb))\b", str(read_head(name)))
    assert {*named} <= {*recipe_names()}


@pytest.mark.parametrize("name", SIZED)
def test_a_recipe_whose_algorithm_differs_from_its_paper_says_what_differs(name):
    config = load(find(name), complete(name))
    differs = generating.TEXTS[config.algorithm.name].differs
    if not differs.startswith("None"):
        assert "Differs" in dict(read_head(name))


# Where a reader who compares numbers would be misled without it.
SAID = {
    "cory_math": ("running mean", "running spread"),
    "grpo_math_team": ("penalty", "all agents of the attempt share"),
    "grpo_search_team": ("penalty", "all agents of the attempt share"),
    "ppo_math": ("returns run over its turns", "Dr. MAS's PPO"),
    "drmas_math": ("lone turn", "micro-batch"),
    "drmas_search": ("Qwen2.5-7B", "lone turn", "micro-batch"),
    "mathchat_coach": ("aime_eval_32", "to a tenth"),
    "data_science_coach": ("63 tasks", "shares are rounded", "to a tenth"),
    "spiral_kuhn": ("pool of its earlier weights",),
    "leader_math": ("before training",),
}


@pytest.mark.parametrize(("name", "words"), SAID.items())
def test_a_head_says_the_differences_that_matter(name, words):
    differences = " ".join(text for label, text in read_head(name) if label == "Differs")
    assert [word for word in words if word not in differences] == []


@pytest.mark.parametrize("name", ["mathchat_coach", "data_science_coach", "drmas_math",
                                  "drmas_search"])  # fmt: skip
def test_the_numbers_of_a_head_are_those_of_its_config(name):
    published = dict(read_head(name))["Published"]
    config = load(find(name))
    numbers = {
        f"{config.rollout.groups} tasks a step",
        f"with {config.rollout.group_size} attempts",
        f"at most {max(a.sampling.max_tokens for a in config.team.values()):,} tokens",
        "lr 1e-6",
        "one epoch" if config.trainer.epochs == 1 else f"{config.trainer.epochs:g} epochs",
    }
    assert {number for number in numbers if number not in published} == set()
    assert {config.policies[name].optimizer.lr for name in config.trained_policies} == {1e-6}
