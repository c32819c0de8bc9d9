"""Finds the local file with the rows of a named data set.

A name is a file, a folder, a short name of the table below or a data set id on the hub. What the
hub's cache holds is found without network.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rolecall.core.errors import first_line
from rolecall.runtime.written_folders import is_partial

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
NO_ROWS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
SPLIT_WORDS = {"train": ("train",), "test": ("test", "eval", "validation", "val", "dev")}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

KNOWN: dict[str, dict[str, tuple[str, str]]] = {  # short name -> split -> (hub id, file)
    "gsm8k": {
        "train": ("openai/gsm8k", "main/train-00000-of-00001.parquet"),
        "test": ("openai/gsm8k", "main/test-00000-of-00001.parquet"),
    },
    "math500": {"test": ("HuggingFaceH4/MATH-500", "test.jsonl")},
    "aime24": {"test": ("Maxwell-Jia/AIME_2024", "aime_2024_problems.parquet")},
    "aime25": {"test": ("math-ai/aime25", "test.jsonl")},
}
HUBS = {  # short name -> hub id, of sets whose file is found by its split
    "minerva": "zwhe99/simplerl-minerva-math",
    "olympiadbench": "realtreetune/olympiadbench",
}
PREPARED = "data"  # the folder in which `rolecall data` leaves its sets


def locate(name: str, *, split: str, cache_dir: Path | None = None) -> Path:
    """Return the file of a split ("train" or "test") of the data set called `name`.

    Raises ValueError in one line if nothing, or more than one file, answers to the name.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        inside = (p.relative_to(path) for p in path.rglob("*") if p.is_file())
        files = sorted(p.as_posix() for p in inside if not is_partial(p))
        return path / choose(files, name=name, split=split)
    if path.parts[:-1] == (PREPARED,) and not path.suffix:
        raise ValueError(f"there is no folder {name}: `rolecall data {path.name}` makes it")
    short = re.sub(r"[-_ ]", "", name.casefold())
    if short in KNOWN:
        if split not in KNOWN[short]:
            raise ValueError(f"{name!r} has no split {split!r}, only {', '.join(KNOWN[short])}")
        repo, file = KNOWN[short][split]
        return _download(repo, file, name=name, cache_dir=cache_dir)
    if short in HUBS or HUB_ID.fullmatch(name):
        repo = HUBS.get(short, name)
        files = _hub_files(repo, cache_dir=cache_dir)
        file = choose(files, name=name, split=split)
        return _download(repo, file, name=name, cache_dir=cache_dir)
    names = [*KNOWN, *HUBS]
    near = difflib.get_close_matches(short, names, n=3, cutoff=0.5)
    raise ValueError(
        f"no data set {name!r}: no such file or folder, no hub id org/name, and not a known name"
        f" ({'nearest: ' + ', '.join(near) if near else 'known: ' + ', '.join(names)})"
    )


def choose(files: Sequence[str], *, name: str, split: str) -> str:
    """Return the data file of a split among the files of a folder.

    choose(["README.md", "main/test-00000-of-00001.parquet", "main/train-00000-of-00001.parquet"],
    name="openai/gsm8k", split="train") -> "main/train-00000-of-00001.parquet"
    """
    data = [
        file
        for file in files
        if file.endswith(SUFFIXES) and PurePosixPath(file).name not in NO_ROWS
    ]
    named = [file for file in data if _guess_split(file) == split]
    if not named:
        named = [file for file in data if _guess_split(file) is None]
    if len(named) > 1:  # a hub data set may hold several configurations
        named = [file for file in named if file.startswith(("main/", "default/"))] or named
    if len(named) != 1:
        candidates = (
            f"several: {', '.join(named[:5])}" if named else f"files: {', '.join(files[:5])}"
        )
        raise ValueError(f"{name!r} has no single data file for split {split!r} ({candidates})")
    return named[0]


def _guess_split(file: str) -> str | None:
    """Return the split that a file's own name, or else its folder, speaks of."""
    for folder in reversed(PurePosixPath(file).parts):
        words = re.split(r"[^a-z]+", folder.casefold())
        for split, names in SPLIT_WORDS.items():
            if any(word in names for word in words):
                return split
    return None


def _hub_files(repo: str, *, cache_dir: Path | None) -> list[str]:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        return HfApi().list_repo_files(repo, repo_type="dataset")
    except HfHubHTTPError as error:
        raise ValueError(f"no data set {repo!r} on the hub: {first_line(error)}") from error
    except (OSError, HTTPError) as unreachable:
        try:
            cached = Path(
                snapshot_download(
                    repo, repo_type="dataset", cache_dir=cache_dir, local_files_only=True
                )
            )
        except (OSError, ValueError) as error:
            raise ValueError(
                f"no data set {repo!r}: no such file or folder, not in the hub's cache, and the"
                f" hub cannot be reached: {first_line(unreachable)}"
            ) from error
        return sorted(p.relative_to(cached).as_posix() for p in cached.rglob("*") if p.is_file())


def _download(repo: str, file: str, *, name: str, cache_dir: Path | None) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HTTPError

    try:
        return Path(hf_hub_download(repo, file, repo_type="dataset", cache_dir=cache_dir))
    except (OSError, ValueError, HTTPError) as error:
        raise ValueError(
            f"cannot fetch {name!r}: tried {file} of hub data set {repo}: "
            f"{first_line(error).rstrip('.')}; without a network write a file in place of {name!r}"
        ) from error
