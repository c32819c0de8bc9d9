"""Keys are taken out of whatever is shown, before it is cut."""

from __future__ import annotations

import ast
import asyncio
import logging

import pytest

from rolecall.cli.output import fail
from rolecall.config.served import SGLangEngineConfig
from rolecall.engines.served.connection import Connection, ServerError
from rolecall.retrieval.remote import Servers
from rolecall.runtime import secret_texts
from rolecall.runtime.retrying import MOST_TOLD
from rolecall.runtime.secret_texts import excerpt, remember_secret, remember_secrets_of_url, scrub
from rolecall.sandbox.base import Run, SandboxRefusedError
from rolecall.sandbox.fusion import Fusion
from rolecall.storage.log_file import log_to_file
from tests.retrieval.foreign import serving
from tests.sources import source_files

KEY = "sk-9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4"
SHOWN = 8  # letters of a key in a row that nobody can use
SAID = {"answer", "content", "reply", "said"}  # names of what a server says


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(secret_texts, "_forms", [])


def shows_a_part(text: str) -> bool:
    return any(KEY[i : i + SHOWN] in text for i in range(len(KEY) - SHOWN + 1))


def test_no_part_of_a_key_is_shown_wherever_the_text_is_cut():
    remember_secret(KEY)
    for before in range(MOST_TOLD - len(KEY) - 3, MOST_TOLD + 3):
        told = excerpt("x" * before + KEY + " is wrong", MOST_TOLD)
        assert len(told) <= MOST_TOLD
        assert not shows_a_part(told)


def test_keys_are_found_as_urls_and_json_write_them():
    remember_secret('a+b/c="d"=10')
    remember_secrets_of_url("http://any:pass%2Fword10@host:80/run")
    for text in (
        'a+b/c="d"=10', "a%2Bb%2Fc%3D%22d%22%3D10", r"a+b/c=\"d\"=10", "pass/word10",
        "http://any:pass%2Fword10@host:80/run",
    ):  # fmt: skip
        shown = scrub(f"the key {text} is wrong")
        assert "(key)" in shown
        assert "10" not in shown
    remember_secret("EMPTY")
    assert scrub("EMPTY none") == "EMPTY none", "no secret, and a common word"


@pytest.mark.parametrize("pad", [0, 200, 250, 290])
def test_a_served_engines_key_is_not_shown_when_the_server_repeats_it(pad):
    answer = {"detail": "x" * pad + f"incorrect key {KEY}"}
    with serving(lambda body, number: (401, answer)) as server:

        async def main() -> None:
            options = {"url": server.url, "concurrency": 1, "timeout_s": 5, "pause_s": 0.1}
            engine = Connection(SGLangEngineConfig(**options), key=KEY)
            try:
                await engine.ask("POST", "/v1", read=lambda found: found, body={})
            finally:
                await engine.close()

        with pytest.raises(ServerError, match="refuses the key") as raised:
            asyncio.run(main())
    assert not shows_a_part(str(raised.value))


@pytest.mark.parametrize("place", ["header", "address"])
def test_a_sandboxs_token_is_not_shown_when_the_server_repeats_it(place):
    answer = {"detail": "x" * 260 + f"bad token {KEY}"}
    with serving(lambda body, number: (401, answer)) as server:
        address = server.url.replace("http://", f"http://any:{KEY}@")
        in_header = place == "header"
        sandbox = Fusion(server.url, token=KEY) if in_header else Fusion(address)
        with pytest.raises(SandboxRefusedError, match="refuses any request") as raised:
            asyncio.run(sandbox.run(Run("print(1)")))
    assert not shows_a_part(str(raised.value))


def test_a_search_servers_password_is_not_shown():
    with serving(lambda body, number: (403, {"detail": "no"})) as server:
        servers = Servers([server.url.replace("http://", f"http://any:{KEY}@")], deadline_s=2)
        with pytest.raises(Exception, match="HTTP 403") as raised:
            asyncio.run(servers.search(["a"], 1))
    assert not shows_a_part(str(raised.value))


def test_problems_and_logs_are_without_keys_and_a_terminal_gets_no_escape_codes(tmp_path, capsys):
    remember_secret(KEY)
    with pytest.raises(SystemExit):
        fail(f"the server said \x1b]0;owned\x07\x1b[2J {KEY} \u202e.", status=1)
    shown = capsys.readouterr().err
    assert shown == "rolecall: the server said \u241b]0;owned\u2407\u241b[2J (key) \ufffd.\n"
    with log_to_file(tmp_path / "log.txt"):
        logging.getLogger("rolecall").warning("refused: %s", KEY)
        logging.getLogger("httpx").warning("refused: %s", KEY)
    assert (tmp_path / "log.txt").read_text().count("refused: (key)") == 2


def test_what_a_server_says_is_cut_by_excerpt_alone():
    """`content[:200]` in a message cuts a key before it can be found."""
    wrong = []
    for _, file in source_files():
        tree = ast.parse(file.read_text())
        for message in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
            for node in ast.walk(message):
                if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
                    names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
                    if names & SAID:
                        wrong.append(f"{file.name}: {ast.unparse(node)}")
    assert wrong == [
        # Of a program in our own sandbox, and of an agent: neither knows a key.
        "hidden_tests.py: repr(answer.value)[:MOST_SHOWN]",
        "environment.py: reply[-200:]",
    ]
