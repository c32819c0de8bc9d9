"""The sandbox server: its protocol, and each trap of the public one."""

import asyncio
import base64
import json
import threading
import time
from dataclasses import replace

import httpx
import pytest
import uvicorn

from rolecall.sandbox.base import Limits, Run
from rolecall.sandbox.fusion import Fusion
from rolecall.serve.sandbox import RULES, SandboxServer, make_app
from tests.sandbox.places import working_sandbox

pytestmark = pytest.mark.slow


def started(application):
    """A real server on a free port of the loopback; yields a client of it."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def client():
    limits = Limits(file_mb=2, num_files=8)
    yield from started(make_app(SandboxServer(working_sandbox(concurrency=3), limits=limits)))


def post(client, code, **fields):
    answer = client.post("/run_code", json={"code": code, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def coded(content):
    return base64.b64encode(content).decode()


def test_a_run_is_told_in_the_protocols_form(client):
    said = post(client, "import sys; print('a'); print('b', file=sys.stderr)", language="python")
    assert (said["status"], said["message"], said["compile_result"]) == ("Success", "", None)
    assert (said["files"], said["executor_pod_name"]) == ({}, None)
    ran = said["run_result"]
    assert (ran["status"], ran["return_code"]) == ("Finished", 0)
    assert (ran["stdout"], ran["stderr"]) == ("a\n", "b\n")
    assert ran["execution_time"] > 0


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(2)", "1 / 0", "print(", "import os; os.abort()"]
)
def test_a_programs_failure_is_never_the_sandboxes(client, code):
    said = post(client, code)
    assert (said["status"], said["compile_result"]) == ("Failed", None)
    assert said["run_result"]["status"] == "Finished"
    assert said["run_result"]["return_code"] not in (0, None)


def test_a_timeout_keeps_what_was_said(client):
    said = post(client, "print('x', flush=True)\nwhile True: pass", run_timeout=0.5)
    ran = said["run_result"]
    assert (said["status"], ran["status"]) == ("Failed", "TimeLimitExceeded")
    assert (ran["return_code"], ran["stdout"], ran["stderr"]) == (None, "x\n", "")


def test_a_missing_language_is_python_and_unknown_fields_are_ignored(client):
    assert post(client, "print(1)", colour="red")["run_result"]["stdout"] == "1\n"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 1},
        {"code": "", "language": "cobol"},
        {"code": "", "run_timeout": -1},
        {"code": "", "run_timeout": "soon"},
        {"code": "", "files": {"a": "no base64!"}},
        {"code": "", "files": {"../a": ""}},
        {"code": "", "files": {"/etc/passwd": ""}},
        {"code": "", "fetch_files": ["/etc/passwd"]},
        {"code": "", "fetch_files": ["../../etc/passwd"]},
    ],
)
def test_a_request_that_cannot_be_is_422(client, body):
    assert client.post("/run_code", json=body).status_code == 422


def test_a_body_that_is_no_json_is_422(client):
    for content in (b"", b"{", b"\xff", b"[" * 100_000, b'{"code": "", "run_timeout": NaN}'):
        assert client.post("/run_code", content=content).status_code == 422


def test_ping_and_capabilities(client):
    assert client.get("/v1/ping").json() == "pong"
    told = client.get("/v1/capabilities").json()
    assert (told["globs"], told["max_output_bytes"]) == (True, 65_536)
    assert told["max_file_bytes"] == 2 << 20
    assert told["isolation"].startswith("bubblewrap")
    assert set(told["languages"]) >= {"python", "bash"}


def test_pipes_are_drained_while_the_program_runs(client):
    said = post(client, "import sys\nfor s in (sys.stdout, sys.stderr): s.write('x' * 3_000_000)")
    ran = said["run_result"]
    assert said["status"] == "Success"
    assert (ran["stdout_omitted"], ran["stderr_omitted"]) == (3_000_000 - 65_536,) * 2
    assert f"{3_000_000 - 65_536} bytes omitted" in ran["stdout"]
    exact = post(client, "print('x' * 60_000, end='')")["run_result"]["stdout"]
    assert exact == "x" * 60_000  # nothing is added


def test_a_byte_that_is_no_text_is_replaced_alone(client):
    said = post(client, "import os; os.write(1, b'before\\xffafter')")
    assert said["run_result"]["stdout"] == "before\ufffdafter"


def test_patterns_are_expanded_and_files_bounded(client):
    code = "for n in range(3): open(f'{n}.pkl', 'wb').write(b'p' * 10)\n"
    code += "open('big.pkl', 'wb').write(bytes(3 << 20))"
    said = post(client, code, fetch_files=["*.pkl", "missing.csv"])
    assert said["files"] == {f"{n}.pkl": coded(b"p" * 10) for n in range(3)}
    assert said["left_out"] == ["big.pkl"]


def test_files_come_and_go_under_the_names_that_were_asked(client):
    files = {"a/in.txt": coded(b"x"), "null": None, "IGNORE_THIS_FILE_1": coded(b"")}
    files["/tmp/work/abs.txt"] = coded(b"absolute")
    code = "import os; print(sorted(os.listdir('.')), open('abs.txt').read())"
    fetch = ["./a/in.txt", "/tmp/work/abs.txt", "a/in.txt.missing"]
    said = post(client, code, files=files, fetch_files=fetch)
    assert said["run_result"]["stdout"] == "['__program__.py', 'a', 'abs.txt'] absolute\n"
    assert said["files"] == {"./a/in.txt": coded(b"x"), "/tmp/work/abs.txt": coded(b"absolute")}


def test_links_are_not_followed_out(client):
    code = "import os; os.symlink('/usr/bin/env', 'x'); os.symlink('/usr', 'd')"
    assert post(client, code, fetch_files=["x", "d/bin/env"])["files"] == {}


def test_the_servers_environment_is_not_the_programs(client, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    code = "import os; print('secret' in str(os.environ), os.getuid() == 0)"
    assert post(client, code)["run_result"]["stdout"] == "False False\n"


def test_a_daemon_ends_with_its_request(client):
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)"
    before = time.monotonic()
    assert post(client, code)["status"] == "Success"
    assert time.monotonic() - before < 5


def test_a_memory_limit_is_one_of_memory_in_use(client):
    reserve = "import mmap; mmap.mmap(-1, 8 << 30); print('reserved')"
    assert post(client, reserve, memory_limit_MB=200)["run_result"]["stdout"] == "reserved\n"
    said = post(client, "x = b'x' * (1 << 30)", memory_limit_MB=200)
    assert (said["status"], said["run_result"]["limit"]) == ("Failed", "memory")
    more = post(client, "print(1)", memory_limit_MB=10**9)
    assert (more["status"], "memory is limited to" in more["message"]) == ("Success", True)
    fine = post(client, "x = b'x' * (300 << 20); print(1)", memory_limit_MB=-1)
    assert fine["run_result"]["stdout"] == "1\n"


def test_a_limit_that_is_weaker_than_asked_is_told(tmp_path):
    sandbox = working_sandbox(unenforced=["memory"], cgroup=tmp_path / "none", warm=0)
    for client in started(make_app(SandboxServer(sandbox))):
        assert "each process only" in post(client, "", memory_limit_MB=500)["message"]
        assert post(client, "")["message"] == ""


def test_cells_share_a_process_and_tell_their_errors(client):
    cells = ["x = 6", "print('hi'); x * 7", "1 / 0", "x"]
    body = {"cells": cells, "files": {"in.txt": coded(b"i")}, "fetch_files": ["*.txt"]}
    said = client.post("/run_jupyter", json=body).json()
    assert (said["status"], said["driver"]["status"]) == ("Success", "Finished")
    assert said["cells"][1]["stdout"] == "hi\n"
    assert said["cells"][1]["display"] == [{"text/plain": "42"}]
    assert said["cells"][2]["error"][0]["ename"] == "ZeroDivisionError"
    assert (len(said["cells"]), said["files"]) == (4, {"in.txt": coded(b"i")})


@pytest.mark.parametrize("limits", [{"cell_timeout": 0.5}, {"total_timeout": 0.8}])
def test_a_cells_timeout_is_enforced_and_finished_cells_are_kept(client, limits):
    cells = ["open('x.txt', 'w').write('y')", "print('done')", "while True: pass"]
    said = client.post(
        "/run_jupyter", json={"cells": cells, "fetch_files": ["x.txt"], **limits}
    ).json()
    assert (said["status"], said["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert [cell["stdout"] for cell in said["cells"]] == ["", "done\n"]
    assert said["files"] == {"x.txt": coded(b"y")}


def test_another_kernel_is_refused(client):
    body = {"cells": [], "kernel": "julia"}
    assert client.post("/run_jupyter", json=body).status_code == 422


def test_too_many_requests_are_told_to_come_again(monkeypatch):
    monkeypatch.setattr("rolecall.serve.sandbox.WAIT_S", 1.0)
    sandbox = working_sandbox(concurrency=1, warm=1)
    for client in started(make_app(SandboxServer(sandbox, queue=1))):

        async def play(url):
            async with httpx.AsyncClient(base_url=url, timeout=60) as many:
                body = {"code": "import time; time.sleep(2)"}
                asked = [many.post("/run_code", json=body) for _ in range(4)]
                return await asyncio.gather(*asked)

        answers = asyncio.run(play(str(client.base_url)))
        assert sorted(answer.status_code for answer in answers) == [200, 504, 504, 504]
        assert post(client, "print(1)")["status"] == "Success"


def test_a_token_is_asked_for_and_large_bodies_are_refused():
    sandbox = working_sandbox(concurrency=1, warm=0)
    rules = replace(RULES, token="word", body_bytes=1 << 20)
    for client in started(make_app(SandboxServer(sandbox), rules=rules)):
        assert client.post("/run_code", json={"code": ""}).status_code == 401
        wrong = {"Authorization": "Bearer other"}
        assert client.post("/run_code", json={"code": ""}, headers=wrong).status_code == 401
        assert client.get("/v1/ping").status_code == 200
        client.headers["Authorization"] = "Bearer word"
        assert post(client, "print(1)")["status"] == "Success"
        large = json.dumps({"code": "#" * (2 << 20)})
        assert client.post("/run_code", content=large).status_code == 413


def test_an_infrastructure_failure_is_told_as_such(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    broken.chmod(0o755)
    working_sandbox(warm=0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    from rolecall.sandbox.bubblewrap import Bubblewrap

    for client in started(make_app(SandboxServer(Bubblewrap(warm=0)))):
        said = post(client, "print(1)")
        assert (said["status"], said["run_result"]["stdout"]) == ("SandboxError", "")
        assert "broken" in said["message"]
        cells = client.post("/run_jupyter", json={"cells": ["1"]}).json()
        assert (cells["status"], cells["cells"]) == ("SandboxError", [])


def test_our_client_and_our_server_understand_each_other(client):
    async def play():
        fusion = Fusion(str(client.base_url))
        code = "print(open('in.txt').read()); open('out.txt', 'w').write('o')"
        ran = await fusion.run(Run(code, files={"in.txt": b"i"}, fetch=("o*.txt",)))
        limited = await fusion.run(Run("x = b'x' * (1 << 30)", limits=Limits(memory_mb=100)))
        await fusion.close()
        return ran, limited

    ran, limited = asyncio.run(play())
    assert (ran.status, ran.stdout, ran.files) == ("finished", "i\n", {"out.txt": b"o"})
    assert (limited.status, limited.limit) == ("error", "memory")
