"""Keeps the list of what the model files of transformers define.

To make it transformers reads all of its 2,400 model files, twice, whenever it is imported. Here it
is read from a file beside Python's compiled ones until one of the model files changes.
"""

from __future__ import annotations

import marshal
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

LISTS = "transformers.utils.import_utils"  # the module that has the function
LIST = "create_import_structure_from_path"  # of a folder, or of that of a file
List = Callable[[Any], dict[Any, Any]]


@contextmanager
def kept_listing() -> Iterator[None]:
    """Where transformers is imported inside for the first time, it makes no list that is kept."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def of_kept(make: List, models: Path, file: Path, *, source: Path) -> List:
    """`make`, but what the folder `models` defines is kept in `file`; `source`: where `make` is."""

    @cache
    def of_all() -> dict[Any, Any]:
        key = _state(models, source, Path(__file__))
        with suppress(OSError, EOFError, ValueError, TypeError):
            of, found = marshal.loads(file.read_bytes())
            if of == key:
                return dict(found)
        found = make(models)
        _keep(file, marshal.dumps((key, found)))
        return found

    return lambda path: of_all() if Path(path) in (models, models / "__init__.py") else make(path)


def _state(folder: Path, *files: Path) -> bytes:
    """A digest of the names, sizes and times of files, and of all Python files below a folder."""
    digest, folders = sha256(), [os.fspath(folder)]
    for file in files:
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


def _line(path: str, state: os.stat_result) -> bytes:
    return f"{path} {state.st_size} {state.st_mtime_ns}\n".encode()


def _keep(file: Path, content: bytes) -> None:
    """Nothing is kept where Python keeps nothing, or may not write."""
    if sys.dont_write_bytecode:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_name(f"{file.name}.{os.getpid()}")  # another process may write too
        written.write_bytes(content)
        written.replace(file)


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
    """Loads the module as it is, and then changes its function."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        make, source = getattr(module, LIST, None), Path(self.path)
        models, file = source.parents[1] / "models", Path(cache_from_source(__file__))
        if make is not None and models.is_dir():
            kept = of_kept(make, models, file.with_suffix(".models"), source=source)
            setattr(module, LIST, kept)
