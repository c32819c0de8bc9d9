"""What docs/coming-from.md says of this code is so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.main import get_command

from rolecall.cli.main import app
from rolecall.config.load import find, load, recipe_names
from rolecall.config.registry import BUILT_IN, import_object, options_model, resolve
from rolecall.config.schema import Config, Named, RewardConfig

FILE = Path(__file__).resolve().parents[2] / "docs/generate_coming_from.py"
spec = importlib.util.spec_from_file_location("generate_coming_from", FILE)
generating = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generating)
TABLES = [generating.MRLM, generating.DRMAS, generating.MARTI, *generating.OTHERS.values()]
OURS = sorted({one for names in TABLES for _, ours, _ in names for one in ours})
MAPPED = sorted(
    {key.ours for f in generating.FRAMEWORKS.values() for key in f.keys.values() if key.ours}
)


def test_the_page_is_made_of_the_importer_s_tables():
    written = FILE.with_name("coming-from.md").read_text()
    assert written == generating.page() + "\n", "run docs/generate_coming_from.py"


@pytest.mark.parametrize("ours", [one for one in OURS if ":" in one])
def test_a_python_name_of_ours_can_be_imported(ours):
    assert import_object(ours, key="here") is not None


@pytest.mark.parametrize("ours", [one for one in OURS if one.startswith("rolecall ")])
def test_a_command_of_ours_can_be_typed(ours):
    command = get_command(app)
    words = ours.split()[1:]
    while words and hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert all(word in recipe_names() for word in words if re.fullmatch("[a-z_]+", word))


@pytest.mark.parametrize(
    "ours", sorted({*MAPPED, *(one for one in OURS if re.fullmatch(r"[\w.]+", one))})
)
def test_a_key_of_ours_is_in_the_config(ours):
    first, *rest = re.sub(r"\*|NAME", "x", ours).split(".")
    assert first in Config.model_fields
    section, rest = {
        "environment": (_options("environment"), rest),
        "workflow": (_options("workflow"), rest),
        "algorithm": (_options("algorithm"), rest),
    }.get(first, (None, rest))
    if section is not None:
        assert not rest or rest[0] in section | {"name"}
        return
    assert _has(Config.model_fields[first].annotation, rest), ours


def _options(kind: str) -> set[str]:
    """What all built-in things of a kind can be told."""
    found = set()
    for name in BUILT_IN[kind]:
        call = resolve(kind, name, key=kind)
        play, skip = (call.play, 3) if kind == "workflow" else (call, 0)
        found |= set(options_model(play, skip=skip).model_fields)
    return found


def _has(annotation: object, path: list[str]) -> bool:
    """Whether a dotted path leads somewhere in a model; `x` stands for a name of the user's."""
    if not path:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in (Named, RewardConfig):
            return True
        field = annotation.model_fields.get(path[0])
        return field is not None and _has(field.annotation, path[1:])
    inner = getattr(annotation, "__args__", ())
    if getattr(annotation, "__origin__", None) is dict:
        return _has(inner[1], path[1:])
    return annotation is not type(None) and any(_has(part, path) for part in inner)


def test_the_recipes_of_dr_mas_have_the_numbers_that_the_documentation_says_they_share():
    """What its scripts set, and verl's defaults beside that; the page tells what is not shared."""
    shared = {
        "drmas_math": (32, 8, {"dual_clip": 3.0}, 4096, 0.1),
        "drmas_search": (128, 5, {"dual_clip": 3.0, "minibatches": 5, "entropy": 0.001}, 800, 0.01),
    }
    for name, (groups, size, options, ids, penalty) in shared.items():
        config = load(find(name))
        assert (config.rollout.groups, config.rollout.group_size) == (groups, size)
        assert config.algorithm.options == options
        assert {agent.sampling.max_tokens for agent in config.team.values()} == {ids}
        assert {agent.invalid_penalty for agent in config.team.values()} == {penalty}
        assert {policy.optimizer.lr for policy in config.policies.values()} == {1e-6}
    text = (Path(__file__).parents[2] / "docs/coming-from.md").read_text()
    assert "agents and numbers of the script" not in text
    assert "Qwen2.5-7B; here 3B-Instruct" in text


def test_the_recipes_of_dr_mas_run_as_long_and_are_evaluated_as_published():
    for name, epochs, every, tasks, flow in (
        ("drmas_math", 2, 10, 50, {"rounds": 2, "on_unparsable": "approve"}),
        ("drmas_search", 1, 5, 30, {"max_steps": 4, "history": 4, "on_unparsable": "yes",
                                    "last_step": "verdict"}),
    ):  # fmt: skip
        config = load(find(name))
        assert config.trainer.epochs == epochs
        evaluation = config.evaluation
        assert (evaluation.every, evaluation.tasks, evaluation.samples) == (every, tasks, 1)
        assert (evaluation.sampling.temperature, evaluation.sampling.top_p) == (0.6, 0.95)
        assert config.workflow.options == flow
