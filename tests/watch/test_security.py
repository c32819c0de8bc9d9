"""Who may ask the server of the watch page."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from rolecall.core.errors import ConfigError
from rolecall.watch.runs import Runs
from rolecall.watch.server import Watch
from rolecall.watch.serving import Address, guard_app
from tests.toy import command
from tests.watch.small_runs import write_run

TOKEN = "correct horse"


def client_of(folder, *, token: str = "", host: str = "127.0.0.1") -> TestClient:
    address = Address(host, 8800, token)
    guarded = guard_app(Watch(Runs([folder])), address, say=lambda line: None)
    return TestClient(guarded, base_url="http://127.0.0.1:8800")


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "mine", steps=1).parent


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8800"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "192.168.0.7:8800"}, 421),
        ({"origin": "http://127.0.0.1:8800"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
    ],
)
def test_only_this_machines_own_page_may_ask(folder, headers, status):
    assert client_of(folder).get("/api/runs", headers=headers).status_code == status


def test_another_site_may_link_to_a_page_and_read_nothing(folder):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    link |= {"sec-fetch-dest": "document"}
    client = client_of(folder)
    assert client.get("/run?run=mine", headers=link).status_code == 200
    assert client.get("/api/run?run=mine", headers=link).status_code == 403


@pytest.mark.parametrize("path", ["/", "/talk?run=x", "/app.js", "/api/runs", "/api/none"])
def test_every_answer_forbids_what_the_page_does_not_need(folder, path):
    headers = client_of(folder).get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path", ["/..%2f..%2fpyproject.toml", "/static/../models.py", "/models.py"]
)
def test_no_other_file_is_served(folder, path):
    answer = client_of(folder).get(path)
    assert b"rolecall watch" in answer.content  # the page itself
    assert b"import" not in answer.content


def test_a_token_opens_the_page_once_and_leaves_a_cookie(folder):
    client = client_of(folder, token=TOKEN, host="0.0.0.0")
    assert client.get("/api/runs").status_code == 401
    assert client.get("/", params={"token": "wrong"}).status_code == 403
    opened = client.get("/", params={"token": TOKEN})
    assert opened.status_code == 200
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/api/runs").status_code == 200
    client.cookies.clear()
    assert client.get("/", params={"token": TOKEN}).status_code == 403  # it was used
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/runs", headers=bearer).status_code == 200


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--host", "0.0.0.0"), "--token-env"),
        (("--token-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        (("--port", "1"), "cannot listen"),
    ],
)
def test_an_address_of_no_use_is_said_in_one_line(folder, words, error, capsys, monkeypatch):
    if "--port" in words:
        monkeypatch.setattr("rolecall.watch.serving.check_port", refuse_port)
    assert command("watch", folder, "--no-open", *words) == 2
    assert error in capsys.readouterr().err


def refuse_port(host: str, port: int) -> None:
    raise ConfigError(f"cannot listen on {host}:{port}: Permission denied")


def test_a_folder_that_is_not_there_is_said(tmp_path, capsys):
    assert command("watch", tmp_path / "none", "--no-open") == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json", "origin": "http://evil.example"}, 403),
        ({"content-type": "application/json"}, 403),  # no --what-if
    ],
)
def test_no_other_site_starts_a_replay(folder, headers, status):
    answer = client_of(folder).post("/api/jobs", content=b'{"kind": "spikes"}', headers=headers)
    assert answer.status_code in (status, 400 if status == 403 else status)
