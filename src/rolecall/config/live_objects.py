"""Names functions and classes of a running program as a config does, so that they can stand in one.

A config is a file that a run can be started from again, so what it names must stand in a file too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolecall.core.errors import ConfigError


def name_objects(value: Any) -> Any:
    """Return a config with `path/to/file.py:name` in place of functions and classes.

    They may be values, and the keys of `rewards`. Raises ConfigError for what no file holds.
    """
    if isinstance(value, Mapping):
        return {
            _object_name(k) if callable(k) else k: name_objects(each) for k, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [name_objects(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return _object_name(value) if callable(value) else value


def _object_name(found: Any) -> str:
    # A workflow is an object that calls the function of which it was made.
    inner = getattr(found, "play", found)
    name = getattr(inner, "__qualname__", "")
    shown = name or repr(found)
    try:
        file = inspect.getsourcefile(inner)
    except TypeError:
        file = None
    if not name or "<" in name or file is None or not Path(file).is_file():
        raise ConfigError(
            f"{shown} cannot stand in a config, because no file has it at its top level; write it "
            "into a file (in a notebook by %%writefile mine.py) and name it 'mine.py:name'"
        )
    module = sys.modules.get(inner.__module__)
    if "." in name or getattr(module, name, None) not in (found, inner):
        raise ConfigError(
            f"{shown} cannot stand in a config, because {file} has no {name!r} at its top level; "
            "define it there"
        )
    return f"{Path(file).resolve()}:{name}"
