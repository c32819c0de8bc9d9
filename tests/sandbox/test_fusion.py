"""The client of sandbox servers: against our own server, a stock one, and ones that fail."""

import asyncio
import base64
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rolecall.sandbox.base import Limits, Run, SandboxError, SandboxRefusedError
from rolecall.sandbox.drain import gap
from rolecall.sandbox.fusion import Fusion
from tests.sandbox.places import run as run_here

pytestmark = pytest.mark.slow


@contextmanager
def server(answer):
    """Serves `answer(path, body) -> (status, object)`; yields its URL and what was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            asked.append((self.path, body, dict(self.headers)))
            status, said = answer(self.path, body)
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *arguments):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", asked
    finally:
        listening.shutdown()
        listening.server_close()


def ask(url, run, **options):
    async def play():
        client = Fusion(url, **options)
        try:
            return await client.run(run)
        finally:
            await client.close()

    return asyncio.run(play())


def result(**changes):
    ran = {"status": "Finished", "execution_time": 0.5, "return_code": 0, "stdout": "out\n"}
    ran |= {"stderr": ""} | changes
    return {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": ran,
        "files": {},
    }


@pytest.mark.parametrize("end", ["", "/", "/run_code"])
def test_the_servers_url_may_name_the_endpoint_or_not(end):
    with server(lambda path, body: (200, result())) as (url, asked):
        limits = Limits(wall_s=3, memory_mb=77)
        run = Run("print(1)", stdin="in", files={"a/b": b"\xff"}, fetch=("c",), limits=limits)
        ran = ask(url + end, run, token="word")
    assert (ran.status, ran.stdout, ran.wall_s) == ("finished", "out\n", 0.5)
    [(path, body, headers)] = asked
    assert path == "/run_code"
    assert headers["Authorization"] == "Bearer word"
    assert body == {
        "code": "print(1)",
        "language": "python",
        "compile_timeout": 10.0,
        "run_timeout": 3,
        "memory_limit_MB": 77,
        "stdin": "in",
        "files": {"a/b": base64.b64encode(b"\xff").decode()},
        "fetch_files": ["c"],
    }


def test_a_results_every_form_is_read():
    late = result(status="TimeLimitExceeded", return_code=None, stdout="so far")
    with server(lambda path, body: (200, late | {"status": "Failed"})) as (url, _):
        ran = ask(url, Run(""))
        assert (ran.status, ran.limit, ran.return_code) == ("timeout", "wall", None)
        assert ran.stdout == "so far"
    failed = result(return_code=1, stderr="no", stdout=None) | {"status": "Failed"}
    with server(lambda path, body: (200, failed)) as (url, _):
        ran = ask(url, Run(""))
        assert (ran.status, ran.stdout, ran.stderr) == ("error", "", "no")
    bad = {"status": "Failed", "run_result": None, "compile_result": failed["run_result"]}
    with server(lambda path, body: (200, bad)) as (url, _):
        assert ask(url, Run("", language="cpp")).status == "error"


def test_output_is_cut_here_too():
    with server(lambda path, body: (200, result(stdout="x" * 5000))) as (url, _):
        ran = ask(url, Run("", limits=Limits(output_bytes=1000)))
    assert (ran.stdout_omitted, len(ran.stdout) < 1100) == (4000, True)


@pytest.mark.parametrize(("most", "lost"), [(10_000, 7000), (1000, 9000)])
def test_what_our_server_cut_counts_as_cut(most, lost):
    there = "a" * 1500 + gap(7000) + "b" * 1500
    said = result(stdout=there, stdout_omitted=7000) | {"left_out": ["big.bin"]}
    with server(lambda path, body: (200, said)) as (url, _):
        ran = ask(url, Run("", limits=Limits(output_bytes=most)))
    kept = min(3000, most) // 2
    assert ran.stdout == "a" * kept + gap(lost) + "b" * kept
    assert ran.stdout_omitted == lost
    assert ran.left_out == ("big.bin",)


def test_code_that_is_no_text_reaches_the_server():
    with server(lambda path, body: (200, result())) as (url, asked):
        assert ask(url, Run("print('\ud800')")).status == "finished"
    assert asked[0][1]["code"] == "print('\ud800')"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, {"status": "SandboxError", "message": "no conda", "run_result": None}),
        (200, {"detail": "what"}),
        (200, b"<html>"),
        (200, b"[]"),
        (500, {}),
        (503, {}),
    ],
)
def test_a_servers_failure_is_an_infrastructure_failure(status, said):
    with server(lambda path, body: (status, said)) as (url, asked):
        with pytest.raises(SandboxError):
            ask(url, Run(""))
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, SandboxRefusedError), (404, SandboxRefusedError), (413, ValueError), (422, ValueError)],
)
def test_what_is_refused_is_the_runs_mistake_or_that_of_all_runs(status, kind):
    with server(lambda path, body: (status, {"detail": "the reason"})) as (url, asked):
        with pytest.raises(kind, match=f"HTTP {status}.*the reason"):
            ask(url, Run(""))
        assert len(asked) == 1


def test_an_overloaded_server_is_asked_again(monkeypatch):
    monkeypatch.setattr("rolecall.sandbox.fusion.LONGEST_PAUSE_S", 0.01)
    times = []

    def answer(path, body):
        times.append(path)
        return (504, {}) if len(times) < 3 else (200, result())

    with server(answer) as (url, _):
        assert ask(url, Run("")).status == "finished"
    assert len(times) == 3
    with server(lambda path, body: (504, {})) as (url, asked):
        with pytest.raises(SandboxError, match="no result in 1 s: HTTP 504"):
            ask(url, Run("", limits=Limits(wall_s=0.5)), patience_s=-9.5)
        assert len(asked) > 4
    with pytest.raises(SandboxError, match="ConnectError"):
        ask(url, Run(""))


def test_a_server_that_does_not_answer_is_left_at_the_deadline():
    def answer(path, body):
        time.sleep(11)
        return 200, result()

    with server(answer) as (url, _):
        started = time.monotonic()
        with pytest.raises(SandboxError, match="no result in 1 s"):
            ask(url, Run("", limits=Limits(wall_s=0.5)), patience_s=-9.5)
        assert time.monotonic() - started < 5


def test_a_flood_is_not_read_to_its_end():
    flood = json.dumps(result(stdout="x" * (4 << 20))).encode()
    run = Run("", limits=Limits(output_bytes=100, file_mb=1))
    said = pytest.raises(SandboxError, match="more than")
    with server(lambda path, body: (200, flood)) as (url, _), said:
        ask(url, run)


def test_patterns_are_sent_only_to_servers_that_know_them(sandbox):
    code = "import sys\nfor n in 'ab': open(n + '.pkl', 'w').write(n)\nprint(input())\nsys.exit(3)"
    run = Run(code, stdin="said\n", files={"c.pkl": b"c"}, fetch=("*.pkl",))

    def stock(path, body):
        """As the public server: it runs what it is sent, and knows no patterns."""
        if path != "/run_code":
            return 404, {"detail": "Not Found"}
        # Our own sandbox keeps such names for itself, a stock server does not.
        renamed = json.loads(json.dumps(body).replace("__program__", "_p_"))
        files = {name: base64.b64decode(content) for name, content in renamed["files"].items()}
        files = {name: text.replace(b"__program__", b"_p_") for name, text in files.items()}
        names = renamed["fetch_files"]
        ran = run_here(sandbox, renamed["code"], stdin=body["stdin"], files=files, fetch=names)
        said = result(stdout=ran.stdout, stderr=ran.stderr, return_code=ran.return_code)
        found = {name: base64.b64encode(text).decode() for name, text in ran.files.items()}
        said["files"] = {name.replace("_p_", "__program__"): text for name, text in found.items()}
        return 200, said

    with server(stock) as (url, asked):
        ran = ask(url, run)
    assert (ran.stdout, ran.return_code) == ("said\n", 3)
    assert ran.files == {"a.pkl": b"a", "b.pkl": b"b", "c.pkl": b"c"}
    assert not any(set(name) & set("*?[") for name in asked[-1][1]["fetch_files"])
    with server(lambda path, body: (200, {"globs": True} | result())) as (url, asked):
        ask(url, run)
    assert asked[-1][1]["fetch_files"] == ["*.pkl"]
    said = pytest.raises(ValueError, match="takes no patterns")
    with server(lambda path, body: (404, {})) as (url, _), said:
        ask(url, Run("", language="cpp", fetch=("*",)))
