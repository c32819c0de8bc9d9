"""Finds the files of a public data set by split, on the hub or in a place that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from rolecall.core.errors import first_line
from rolecall.data.data_locations import SUFFIXES
from rolecall.data.known import DataSet
from rolecall.runtime.progress import activity
from rolecall.runtime.written_folders import is_partial

CSV = ".csv"  # only of sets whose pattern says so: beside others lie tables that are no rows
Files = dict[str, list[Path]]  # split -> files, in their order


def fetch(data_set: DataSet, *, cache_dir: Path | None = None) -> Files:
    """Download what is not in the hub's cache yet.

    Raises ValueError, with how to do without the hub, where it cannot be reached.
    """
    if data_set.hub is None:
        raise ValueError(
            f"{data_set.name} is in no repository that can be read: give --from and "
            f"{data_set.needs}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        with activity(f"fetching {data_set.hub}"):
            folder = snapshot_download(
                data_set.hub,
                repo_type="dataset",
                allow_patterns=list(data_set.files.values()),
                cache_dir=cache_dir,
            )
    except (OSError, ValueError, HTTPError) as error:
        raise ValueError(
            f"cannot fetch {data_set.name} ({data_set.hub}): {first_line(error)}; with files of "
            f"your own: rolecall data {data_set.name} --from FILE..."
        ) from error
    files = _by_pattern(data_set, Path(folder))
    missing = [split for split in data_set.files if split not in files]
    if missing:
        raise ValueError(f"{data_set.hub} has no files of {data_set.name}: {', '.join(missing)}")
    return files


def collect_files(data_set: DataSet, sources: Sequence[str]) -> Files:
    """Collect files, folders laid out as the repository, and SPLIT=FILE into the files of each
    split.

    A file whose name tells no split is of the only split that the data set has. Raises ValueError
    for a path that is not there, and where a split cannot be told.
    """
    by_split: Files = {}
    for source in sources:
        split, equals, rest = source.partition("=")
        if not equals or split not in data_set.files:
            split, rest = "", source
        path = Path(rest).expanduser()
        if path.is_dir():
            parts = in_folder(data_set, path)
        elif path.is_file():
            parts = {split or _file_split(data_set, path): [path]}
        else:
            hint = f"; SPLIT=FILE takes {', '.join(data_set.files)}" if "=" in source else ""
            raise ValueError(f"--from: there is no file or folder {rest}{hint}")
        for name, files in parts.items():
            by_split.setdefault(name, []).extend(files)
    return by_split


def in_folder(data_set: DataSet, folder: Path) -> Files:
    """Find files by the patterns of the repository, else by the names of splits in those of
    files.
    """
    files_by_split = _by_pattern(data_set, folder)
    if not files_by_split:
        there = _there(folder)
        by_name = {split: [n for n in there if split in Path(n).name] for split in data_set.files}
        files_by_split = {
            split: [folder / n for n in names] for split, names in by_name.items() if names
        }
    if not files_by_split:
        patterns = ", ".join(data_set.files.values())
        raise ValueError(f"{folder} holds no files of {data_set.name} ({patterns})")
    return files_by_split


def _by_pattern(data_set: DataSet, folder: Path) -> Files:
    by_split = {}
    for split, pattern in data_set.files.items():
        there = _there(folder, suffixes=(CSV,) if pattern.endswith(CSV) else SUFFIXES)
        by_split[split] = [folder / name for name in there if fnmatch(name, pattern)]
    return {split: files for split, files in by_split.items() if files}


def _there(folder: Path, *, suffixes: tuple[str, ...] = SUFFIXES) -> list[str]:
    inside = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    names = (p.as_posix() for p in inside if not is_partial(p))
    return sorted(name for name in names if name.endswith(suffixes))


def _file_split(data_set: DataSet, path: Path) -> str:
    named = [
        split
        for split, pattern in data_set.files.items()
        if split in path.name or fnmatch(path.name, pattern)
    ]
    if len(data_set.files) > 1 and len(named) != 1:
        choices = " or ".join(f"{split}={path}" for split in data_set.files)
        raise ValueError(f"--from: {path.name} tells no split; write {choices}")
    return named[0] if named else next(iter(data_set.files))
