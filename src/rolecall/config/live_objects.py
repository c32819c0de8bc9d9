"""Names functions, classes and objects of a running program, so that they can stand in a config.

What has a file is named by it, as in `path/to/mine.py:Bills`, so that a run can be started again
from its config alone. What has none, such as a class of a notebook, is named `in-memory:Bills` and
kept for as long as the process lives.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rolecall.config.user_code_location import locate_class
from rolecall.core.errors import ConfigError

IN_MEMORY = "in-memory"  # no module can be called so
PLAIN = (str, int, float, bool, type(None))
_kept: dict[str, Any] = {}


class Names:
    """Names of one config: two objects of one name are called `Bills` and `Bills-2`."""

    def __init__(self) -> None:
        self._used: dict[str, Any] = {}

    def keep(self, kept: Any, name: str) -> str:
        """Keep an object under a name of its own, and return `in-memory:NAME`."""
        base = re.sub(r"\W", "", name.rpartition(".")[2]) or "unnamed"
        number, chosen = 1, base
        while chosen in self._used and self._used[chosen] is not kept:
            number += 1
            chosen = f"{base}-{number}"
        self._used[chosen] = kept
        _kept[chosen] = _maker(kept) if is_environment(kept) else kept
        return f"{IN_MEMORY}:{chosen}"


def _maker(made: Any) -> Callable[[], Any]:
    """Return what stands for the class of an object that is there already."""

    def make() -> Any:
        return made

    return make


def find_in_memory(name: str, *, key: str) -> Any:
    """Return the object that this process keeps. Raises ConfigError where it keeps none."""
    if name not in _kept:
        raise ConfigError(
            f"{key}: {IN_MEMORY}:{name} is an object of the Python program that began the run, and "
            "this process has none of that name; go on in that program with rolecall.train(RUN, "
            f"...) and the object, or write it into a file and name it mine.py:{name}"
        )
    return _kept[name]


def is_environment(value: Any) -> bool:
    """Return whether a value is an environment that has been made, and not a class."""
    return not isinstance(value, type) and all(
        callable(getattr(value, method, None)) for method in ("tasks", "open")
    )


def name_objects(value: Any, names: Names | None = None) -> Any:
    """Return a config with names in place of functions, classes and environments.

    They may be values, and the keys of `rewards`. Raises ConfigError for other objects.
    """
    names = names or Names()
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, PLAIN) else name_objects(key, names): name_objects(each, names)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [name_objects(each, names) for each in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, PLAIN):
        return value
    if not callable(value):
        return names.keep(*_check_usable(value))
    return _file_name(value) or names.keep(value, _own_name(value))


def _own_name(value: Any) -> str:
    inner = getattr(value, "play", value)
    return getattr(inner, "__qualname__", "") or type(value).__qualname__


def _check_usable(value: Any) -> tuple[Any, str]:
    """Return an environment or a tool with its name; raises ConfigError for what is neither."""
    kind = type(value)
    if is_environment(value):
        return value, kind.__qualname__
    if callable(getattr(value, "call", None)) and isinstance(getattr(value, "name", None), str):
        return value, value.name
    raise ConfigError(
        f"a {kind.__qualname__} ({locate_class(kind)}) cannot stand in a config: it is no "
        "environment, which has tasks(split) and open(task, *, seed), no tool and no function; "
        "data is given to an environment of your own, as in environment=Bills(rows)"
    )


def _file_name(value: Any) -> str:
    """Return `path/to/file.py:name` of what stands at the top level of a file, else ""."""
    # A workflow is an object that calls the function of which it was made.
    inner = getattr(value, "play", value)
    name = getattr(inner, "__qualname__", "")
    try:
        file = inspect.getsourcefile(inner)
    except TypeError:
        file = None
    if not name or "." in name or "<" in name or file is None or not Path(file).is_file():
        return ""
    module = sys.modules.get(inner.__module__)
    if getattr(module, name, None) not in (value, inner):
        return ""
    return f"{Path(file).resolve()}:{name}"
