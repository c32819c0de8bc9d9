"""Keeps two lists that transformers makes whenever it is imported.

To list what its model files define it reads all 2,400 of them, twice, and to list which installed
distribution has which package it reads what each has installed. Here both are read from files
beside Python's compiled ones, until a model file changes or something is installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

LISTS = "transformers.utils.import_utils"  # the module that makes them
MODELS = "create_import_structure_from_path"  # of a folder, or of that of a file
PACKAGES = "packages_distributions"  # of importlib.metadata

List = dict[Any, Any]


@contextmanager
def kept_lists() -> Iterator[None]:
    """Where transformers is imported inside for the first time, it makes no list that is kept."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != LISTS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Loads the module with our list of packages, and then changes its function."""

    def exec_module(self, module: ModuleType) -> None:
        file, source = Path(cache_from_source(__file__)), Path(self.path)
        packages = getattr(importlib.metadata, PACKAGES)
        setattr(
            importlib.metadata,
            PACKAGES,
            lambda: kept(file.with_suffix(".packages"), state_of_path(), packages),
        )
        try:
            super().exec_module(module)
        finally:
            setattr(importlib.metadata, PACKAGES, packages)
        make, models = getattr(module, MODELS, None), source.parents[1] / "models"
        if make is not None and models.is_dir():
            setattr(module, MODELS, of_models(make, models, file.with_suffix(".models"), source))


def of_models(
    make: Callable[[Any], List], models: Path, file: Path, source: Path
) -> Callable[[Any], List]:
    """`make`, but what the folder `models` defines is kept in `file`; `source`: where `make` is."""

    @cache
    def of_all() -> List:
        return kept(file, state_of(models, source), lambda: make(models))

    return lambda path: of_all() if Path(path) in (models, models / "__init__.py") else make(path)


def kept(file: Path, state: bytes, make: Callable[[], List]) -> List:
    """What `file` holds, or what `make` gives where it was made in another state, and is kept then.

    Nothing is kept where Python keeps nothing, or may not write.
    """
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        of, found = json.loads(file.read_bytes())
        if of == state.hex():
            return dict(_with_sets(found))
    made = make()
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            written = file.with_name(f"{file.name}.{os.getpid()}")  # another process may write too
            written.write_text(json.dumps((state.hex(), _as_json(made))))
            written.replace(file)
    return made


def _as_json(value: Any) -> Any:
    """JSON has no sets, and no keys but texts: each such value becomes an object with one key."""
    if isinstance(value, dict):
        return {"dict": [[_as_json(key), _as_json(each)] for key, each in value.items()]}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: sorted(value)}
    return value


def _with_sets(value: Any) -> Any:
    """The value of which `_as_json` made this one."""
    if not isinstance(value, dict):
        return value
    [(kind, found)] = value.items()
    if kind == "dict":
        return {_with_sets(key): _with_sets(each) for key, each in found}
    return {"set": set, "frozenset": frozenset}[kind](found)


def state_of(folder: Path, *files: Path) -> bytes:
    """A digest of the names, sizes and times of files, and of all Python files below a folder."""
    digest, folders = sha256(), [os.fspath(folder)]
    for file in (*files, Path(__file__)):
        digest.update(_line(os.fspath(file), file.stat()))
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir():
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    digest.update(_line(entry.path, entry.stat()))
    return digest.digest()


def state_of_path() -> bytes:
    """The same of the folders from which Python imports: installing changes their times."""
    digest = sha256()
    for folder in sys.path:
        with suppress(OSError):
            digest.update(_line(folder, os.stat(folder or ".")))
    return digest.digest()


def _line(path: str, state: os.stat_result) -> bytes:
    return f"{path} {state.st_size} {state.st_mtime_ns}\n".encode()
