"""Whatever stands at a key, reading the config ends in lines with keys, not in a traceback."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from rolecall.config.errors import explain
from rolecall.config.load import find, load
from rolecall.config.schema import Config
from rolecall.config.section import Section
from rolecall.core.errors import ConfigError
from rolecall.setup.plan import load_plan
from tests.toy import relay_config, write

SHAPES = [None, 5, "x", [], {}, [{}], {"name": []}, {"x": {"y": 1}}]


def places(tree: Any, place: tuple = ()) -> list[tuple]:
    """Every place of a config where something can stand."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in inside:
        found.append((*place, key))
        if isinstance(value, dict | list):
            found += places(value, (*place, key))
    return found


def full(model_folder: Path, folder: Path) -> dict:
    """All keys of all sections with the values that hold."""
    config = relay_config(model_folder)
    config["policies"]["a"] |= {"engine": {}, "learner": {}, "adapter": {}}
    config["critics"] = {"agent": {}}
    config["trackers"] = ["tensorboard"]
    config["team"]["left"]["tools"] = ["calculator"]
    return load(write(folder / "full.yaml", config)).model_dump(mode="json")


def put(config: dict, place: tuple, value: Any) -> dict:
    changed = yaml.safe_load(yaml.safe_dump(config))
    here = changed
    for part in place[:-1]:
        here = here[part]
    here[place[-1]] = value
    return changed


def attempted(path: Path, overrides: list[str], *, shown: str, plan: bool = False) -> None:
    try:
        (load_plan if plan else load)(path, overrides)
    except ConfigError:
        pass
    except Exception as error:
        pytest.fail(f"{shown}: {type(error).__name__}: {error}")


def test_each_key_with_one_of_the_shapes_is_read_or_refused(model_folder, tmp_path):
    """The shapes in turn, each at every sixth of its keys; `make evidence` has all of them."""
    config = full(model_folder, tmp_path)
    for number, shape in enumerate(SHAPES):
        check_shape(shape, config, shaped(config, shape)[number :: 6 * len(SHAPES)], tmp_path)


@pytest.mark.evidence
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_any_shape_at_any_key_is_read_or_refused(shape, model_folder, tmp_path):
    config = full(model_folder, tmp_path)
    check_shape(shape, config, shaped(config, shape), tmp_path)


def shaped(config: dict, shape: Any) -> list[tuple]:
    """Return the places where a shape is tried: few shapes stand in the innermost."""
    top = [place for place in places(config) if len(place) <= 3]
    assert len(top) > 100
    return [place for place in top if len(place) < 3 or shape in (5, [])]


def check_shape(shape: Any, config: dict, chosen: list[tuple], tmp_path: Path) -> None:
    """Read the config with this value at each of the places: in a file, below one, overridden."""
    base = write(tmp_path / "base.yaml", config)
    for place in chosen:
        shown = f"{'.'.join(map(str, place))}: {shape!r}"
        attempted(write(tmp_path / "a.yaml", put(config, place, shape)), [], shown=shown, plan=True)
        if len(place) <= 2:  # a file that extends another one, and a command line
            child: Any = shape
            for part in reversed(place):
                child = {part: child}
            file = tmp_path / "child.yaml"
            file.write_text(yaml.safe_dump({"extends": str(base), **child}))
            attempted(file, [], shown=f"extends, {shown}")
            text = yaml.safe_dump(shape, default_flow_style=True).strip().removesuffix("\n...")
            attempted(base, [f"{'.'.join(map(str, place))}={text}"], shown=f"override, {shown}")


def class_names(section: type[BaseModel] = Section) -> set[str]:
    """The names of all classes that sections of a config become."""
    below = section.__subclasses__()
    return {section.__name__}.union(*map(class_names, below))


VARIANTS: list[dict[str, Any]] = [
    {},
    {"engine": {"name": "vllm"}, "learner": {"name": "fsdp"}},
    {"engine": {"name": "sglang"}, "learner": {"name": "replicated"}},
    {"engine": {"name": "openai"}, "learner": {"name": "mine.py:Learner"}},
    {"engine": {"name": "mine.py:Engine"}},
    {"cluster": {"name": "ray", "pools": {"all": {"gpus": 1}}}},
    {"trackers": [{"name": "wandb", "tags": ["a"]}], "prices": {"a": {}}},
    {"rewards": {"correct": {"weight": 1.0}}, "stages": [{"name": "warm"}]},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_no_message_names_a_python_class(variant, model_folder, tmp_path):
    config = {**full(model_folder, tmp_path), **variant}
    for section in [key for key in ("engine", "learner") if key in variant]:
        config["policies"]["a"][section] = dict(variant[section])
    words = sorted(class_names())
    foreign = re.compile(rf"instance of|object to extract|valid dictionary|\b({'|'.join(words)})\b")
    assert len(words) > 30
    seen = 0
    for place in places(config):
        for shape in (5, [], [5], {"name": 5}, {"name": "x"}):
            given = copy.deepcopy(config)
            here: Any = given
            for part in place[:-1]:
                here = here[part]
            here[place[-1]] = shape
            try:
                Config.model_validate(given)
            except ValidationError as error:
                for problem in explain(error, Config, given).problems:
                    assert not foreign.search(problem.partition(" (it is ")[0]), problem
                    seen += 1
    assert seen > 300


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("learner: []", "learner: write a name, or a mapping with `name` (it is [])"),
        ("engine: []", "engine: write a name, or a mapping with `name` (it is [])"),
        ("workflow: 5", "workflow: write a name, or a mapping with `name` (it is 5)"),
        ("cluster: 5", "cluster: write a name, or a mapping with `name` (it is 5)"),
        ("cluster: x", "cluster: no such name; write one of: local, ray (it is {'name': 'x'})"),
        ("trackers: [5]", "trackers.0: write a name, or a mapping with `name` (it is 5)"),
        ("trackers: 5", "trackers: write a list (it is 5)"),
        ("critics: 5", "critics: write a mapping (it is 5)"),
        (
            "critics: {agent: 5}",
            "critics.agent: write a mapping with any of the keys base, optimizer, heads (it is 5)",
        ),
    ],
)
def test_a_value_of_the_wrong_shape_is_answered_with_what_to_write(line, says, tmp_path):
    file = tmp_path / "team.yaml"
    file.write_text(f"extends: math\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load(file)
    assert error.value.problems == (f"{file}:2: {says}",)


@pytest.mark.parametrize(
    "key", ["team", "policies", "rewards", "evaluation", "learner", "team.solver"]
)
@pytest.mark.parametrize("stands_in", ["file", "command line"])
def test_a_list_where_an_inherited_config_has_a_mapping_is_answered_with_its_key(
    key, stands_in, tmp_path
):
    file, last = tmp_path / "team.yaml", key.rpartition(".")[2]
    lines = {"team.solver": "team:\n  solver: []\n"}.get(key, f"{last}: []\n")
    file.write_text(f"extends: math\n{lines if stands_in == 'file' else ''}")
    with pytest.raises(ConfigError) as error:
        load(file, [f"{key}=[]"] if stands_in == "command line" else [])
    line = lines.count("\n") + 1
    place = f"{file}:{line}" if stands_in == "file" else "command line"
    assert error.value.problems[0].startswith(f"{place}: {key}: write a ")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("rewards.correct.weight=[]", "rewards.correct.weight: Input should be a valid number"),
        (
            "rewards={correct: {weight: x}}",
            "rewards.correct.weight: Input should be a valid number",
        ),
        ("rewards={correct: [3]}", "rewards.correct: Input should be a valid number"),
        ("evaluation={tasks: x}", "evaluation.tasks: Input should be a valid integer"),
        ("evaluation={", "evaluation: '{' is not valid YAML"),
    ],
)
def test_a_wrong_value_of_the_command_line_is_located_at_its_own_key(override, problem):
    with pytest.raises(ConfigError) as error:
        load(find("math"), [override])
    assert len(error.value.problems) == 1
    assert error.value.problems[0].startswith(f"command line: {problem}")
