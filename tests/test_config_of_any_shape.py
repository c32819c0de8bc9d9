"""Whatever stands at a key, reading the config ends in lines with keys, not in a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolecall.config.errors import ConfigError
from rolecall.config.load import load
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


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_any_shape_at_any_key_is_read_or_refused(shape, model_folder, tmp_path):
    config = full(model_folder, tmp_path)
    base = write(tmp_path / "base.yaml", config)
    top = [place for place in places(config) if len(place) <= 3]
    assert len(top) > 100
    for place in top:
        if len(place) == 3 and shape not in (5, []):
            continue
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
