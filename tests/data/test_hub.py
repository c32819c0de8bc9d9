"""A data set is downloaded by the hub's own client, from a server that speaks as the hub does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rolecall.environments.search.rows import search_tasks

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "RUC-NLPIR/FlashRAG_datasets"
ROWS = {
    "train": [{"id": "1", "question": "who?", "golden_answers": ["a", "b"]}],
    "test": [{"id": "2", "question": "when?", "golden_answers": ["c"]}],
}
FILES = {
    "README.md": b"words",
    "popqa/test.jsonl": b"another set",
    **{
        f"nq/{split}.jsonl": "\n".join(map(json.dumps, rows)).encode()
        for split, rows in ROWS.items()
    },
}


def oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def entry(file: tuple[str, bytes]) -> dict:
    name, content = file
    return {"type": "file", "path": name, "size": len(content), "oid": oid(content)}


@contextmanager
def hub(files: dict[str, bytes], *, missing: str = "", repos: tuple[str, ...] = (REPO,)):
    """`missing`: a file that is listed and is not there. Each of `repos` has all files."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            repo = next((repo for repo in repos if f"datasets/{repo}/" in f"{path}/"), REPO)
            name = path.removeprefix(f"/datasets/{repo}/resolve/{COMMIT}/")
            if path.startswith(f"/api/datasets/{repo}/tree"):
                self.send(200, json.dumps([*map(entry, files.items())]).encode(), body=body)
            elif path.startswith(f"/api/datasets/{repo}"):
                siblings = [{"rfilename": name} for name in files]
                info = {"id": repo, "sha": COMMIT, "private": False, "siblings": siblings}
                self.send(200, json.dumps(info).encode(), body=body)
            elif name in files and name != missing:
                headers = {"ETag": f'"{oid(files[name])}"', "X-Repo-Commit": COMMIT}
                self.send(200, files[name], body=body, headers=headers)
            else:
                self.send(404, b"{}", body=body)

        def send(self, status, content, *, body, headers=None):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


def rolecall(*arguments, url: str, home: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's client reads its address as it is imported."""
    known = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "rolecall", *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **known}, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "home"


def test_a_set_is_fetched_once_and_prepared(tmp_path, home):
    with hub(FILES) as (url, asked):
        for output in ("out", "again"):
            done = rolecall("data", "nq", "--output", tmp_path / output, url=url, home=home)
            assert done.returncode == 0, done.stderr
        loaded = {path.partition(f"/{COMMIT}/")[2] for path in asked} - {""}
        assert loaded == {"nq/train.jsonl", "nq/test.jsonl"}, "and no other set's"
    for output in ("out", "again"):
        tasks = search_tasks(tmp_path / output / "train.jsonl")
        assert [(task.prompt, task.answer) for task in tasks] == [("who?", ["a", "b"])]


@pytest.mark.parametrize(
    ("name", "missing", "told"),
    [
        ("nq", "nq/test.jsonl", "cannot fetch nq"),
        ("math500", "", "cannot fetch math500"),
        ("bamboogle", "", "has no files of bamboogle: test"),
    ],
)
def test_what_the_hub_lacks_is_one_line(tmp_path, home, name, missing, told):
    with hub(FILES, missing=missing) as (url, _):
        done = rolecall("data", name, "--output", tmp_path / "out", url=url, home=home)
    assert done.returncode == 2
    assert told in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
