"""Writes index folders in one step, and rejects those that are not whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path

from rolecall.runtime.written_folders import new_folder_beside, replace_folder

FORMAT = "rolecall-index-1"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of an index folder."""

    kind: str  # bm25 | dense
    corpus: str  # fingerprint of the corpus file
    num_passages: int
    options: dict[str, str | float] = field(default_factory=dict)  # of the way it is indexed

    @property
    def identity(self) -> str:
        """bm25:<corpus>:<digest of all the rest>."""
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return f"{self.kind}:{self.corpus}:{blake2b(content, digest_size=8).hexdigest()}"


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """Yield a new folder for an index; it gets its name when the block ends without error.

    Raises ValueError before anything is written if the name is taken.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: an index needs a folder of its own")
    with new_folder_beside(folder) as aside:
        yield aside
        replace_folder(aside, folder)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Last of all: it lists the sizes of the files that are there, so that a cut copy shows."""
    content = {"format": FORMAT, "files": _sizes(folder), **asdict(manifest)}
    (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")


def has_index(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def read_kind(folder: Path) -> str:
    """Return the kind of the index that a folder holds; "" if it holds none that can be read."""
    try:
        kind = json.loads((folder / MANIFEST).read_text())["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(kind)


def read_manifest(folder: Path, *, kind: str) -> Manifest:
    """Read a folder's manifest; raises ValueError unless it holds a whole index of the kind."""
    if not has_index(folder):
        raise ValueError(f"{folder} holds no index (no {MANIFEST} in it)")
    try:
        content = json.loads((folder / MANIFEST).read_text())
        if content.pop("format") != FORMAT:
            raise ValueError("another version wrote it")
        files = content.pop("files")
        manifest = Manifest(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / MANIFEST} is not of a {FORMAT} index: {error!r}") from error
    sizes = _sizes(folder)
    broken = sorted(name for name, size in files.items() if sizes.get(name) != size)
    if broken:
        raise ValueError(f"the index in {folder} is not whole: {broken[0]} is missing or cut")
    if manifest.kind != kind:
        raise ValueError(f"{folder} holds a {manifest.kind} index, not a {kind} one")
    return manifest


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
