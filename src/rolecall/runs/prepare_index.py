"""Finds the published parts of an index, on the hub or on this machine, and makes its folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rolecall.core.errors import first_line
from rolecall.data.known import DataSet
from rolecall.retrieval.folders import has_index, read_manifest
from rolecall.retrieval.published_index import KIND, check_parts, write_published
from rolecall.runtime.progress import activity

PARTS = "part_*"
PACKED = (".jsonl.gz", ".jsonl")


@dataclass(frozen=True, slots=True)
class PreparedIndex:
    """The contents of the folder."""

    name: str
    folder: str
    num_passages: int
    dimensions: int
    was_there: bool  # a whole one, from before

    def lines(self) -> list[str]:
        """Return lines for people: what there is, and how to search it."""
        there = " (it was there already)" if self.was_there else ""
        return [
            f"{self.folder}: {self.num_passages:,} passages, vectors of {self.dimensions} "
            f"numbers{there}",
            f"Serve it: rolecall serve search --index {self.folder}",
            "It needs faiss and a model: pip install 'rolecall[dense]'",
        ]


def prepare_index(data_set: DataSet, sources: Sequence[str], folder: Path) -> PreparedIndex:
    """Make the folder of an index, from the hub where no files are named.

    A whole one that is there stays. Raises ValueError that names what is missing or wrong.
    """
    was_there = has_index(folder)
    if was_there:
        try:
            manifest = read_manifest(folder, kind=KIND)
        except ValueError as error:
            raise ValueError(f"{error}; remove the folder, or name another with --output") from None
    else:
        parts, corpus = find_parts(sources) if sources else _fetch(data_set)
        _check_disk(folder, check_parts(parts).num_bytes + corpus.stat().st_size)
        with activity(f"writing {folder}", unit="MB") as now:
            written = 0

            def wrote(number: int) -> None:
                nonlocal written
                written += number
                now.done = written >> 20

            manifest = write_published(parts, corpus, folder, wrote=wrote)
    return PreparedIndex(
        data_set.name,
        str(folder),
        manifest.num_passages,
        int(manifest.options["dimensions"]),
        was_there,
    )


def find_parts(sources: Sequence[str]) -> tuple[list[Path], Path]:
    """Return the parts of the index, ordered by name, and the corpus, of files and folders.

    Raises ValueError for what is not there, and where it is not clear which files are meant.
    """
    files: list[Path] = []
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            packed = [file for kind in PACKED for file in sorted(path.glob(f"*{kind}"))]
            files += sorted(path.glob(PARTS)) or sorted(path.glob("*.index"))
            files += packed
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(f"--from: there is no file or folder {source}")
    corpora = [file for file in files if file.name.endswith(PACKED)]
    parts = [file for file in files if not file.name.endswith(PACKED)]
    if len(corpora) != 1:
        there = ", ".join(str(file) for file in corpora) or "none"
        raise ValueError(f"--from: one corpus (.jsonl or .jsonl.gz) is needed, there is: {there}")
    if not parts:
        raise ValueError(
            f"--from: the parts of the index ({PARTS}) are missing beside {corpora[0]}"
        )
    return sorted(parts, key=lambda part: part.name), corpora[0]


def _fetch(data_set: DataSet) -> tuple[list[Path], Path]:
    """Download what is not in the hub's cache yet."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    files = []
    for published in data_set.files.values():
        repository, _, file = published.rpartition("/")
        try:
            with activity(f"fetching {published}"):
                folder = snapshot_download(repository, repo_type="dataset", allow_patterns=[file])
        except (OSError, ValueError, HTTPError) as error:
            raise ValueError(
                f"cannot fetch {file} of {repository}: {first_line(error).rstrip('.')}; with files "
                f"of your own: rolecall data {data_set.name} --from FOLDER"
            ) from error
        if not (Path(folder) / file).is_file():
            raise ValueError(f"{repository} has no file {file}")
        files.append(Path(folder) / file)
    *parts, corpus = files
    return parts, corpus


def _check_disk(folder: Path, needed: int) -> None:
    parent = folder.absolute()
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ValueError(
            f"{folder}: at least {needed / 1e9:,.1f} GB are needed and {free / 1e9:,.1f} GB are "
            "free; name a folder on another disk with --output"
        )
