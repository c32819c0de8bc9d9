"""Vertex AI without an API key: credentials of a service account, or none at all."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from rolecall.rewards.coach.scores import CoachStopError
from tests.rewards.coach.server import eight, play, said

pytestmark = pytest.mark.slow


class TokenServer(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        token = {"access_token": "token-1", "expires_in": 3600, "token_type": "Bearer"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(token).encode())

    def log_message(self, *_):
        pass


@contextmanager
def token_server():
    server = HTTPServer(("127.0.0.1", 0), TokenServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()


def test_a_service_account_pays_for_the_named_project(tmp_path, monkeypatch):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {"type": "service_account", "client_email": "a@b.c", "private_key": key.decode()}
    path = tmp_path / "account.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project-1")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "europe-west4")
    episode = said("an action")
    with token_server() as address:
        path.write_text(json.dumps(account | {"token_uri": address}))
        server, _ = play(eight, episode, provider="vertex", engine={"key_env": None})
    assert episode.turns[0].rewards == {"coach": 0.8}
    [asked] = server.asked
    assert "/projects/project-1/locations/europe-west4/" in asked.path
    assert asked.headers["authorization"] == "Bearer token-1"


def test_missing_credentials_stop_the_coach_before_any_request(tmp_path, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project-1")
    with pytest.raises(CoachStopError, match="no credentials"):
        play(eight, said("an action"), provider="vertex", engine={"key_env": None})
