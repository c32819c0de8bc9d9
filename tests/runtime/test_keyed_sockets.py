"""Sockets with a key: strangers neither get in nor end the listener nor hold others up."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from rolecall.runtime import keyed_sockets
from rolecall.runtime.bound_store import ForgedValueError, get_signed, serve_store, set_signed
from rolecall.runtime.keyed_sockets import KeyRefusedError, callers, connect, read_json, send_json

HOST = "127.0.0.1"


def _get(address) -> None:
    with socket.create_connection(address) as called:
        called.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 200)


def _reset(address) -> None:
    called = socket.create_connection(address)
    called.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    called.close()


def _says_its_own_proof_back(address) -> None:
    with socket.create_connection(address) as called:
        nonce = called.recv(keyed_sockets.NONCE)
        called.sendall(nonce)
        called.sendall(called.recv(64))
        assert called.recv(1) == b""


@pytest.mark.parametrize("stranger", [_get, _reset, _says_its_own_proof_back])
def test_a_stranger_is_dropped_and_the_next_caller_gets_in(stranger):
    with callers(HOST, number=1) as listening:
        for _ in range(3):
            stranger(listening.address)
        ours = connect(listening.address, listening.key)
        send_json(ours, {"rank": 1})
        assert read_json(listening.next(timeout_s=5)) == {"rank": 1}
        with pytest.raises(TimeoutError):
            listening.next(timeout_s=0.2)


def test_silent_callers_hold_nobody_up_and_are_dropped_in_time(monkeypatch):
    monkeypatch.setattr(keyed_sockets, "HANDSHAKE_S", 0.5)
    with callers(HOST, number=1) as listening:
        silent = [
            socket.create_connection(listening.address)
            for _ in range(keyed_sockets.MOST_UNPROVED + 5)
        ]
        began = time.monotonic()
        send_json(connect(listening.address, listening.key, timeout_s=10), "here")
        assert read_json(listening.next(timeout_s=10)) == "here"
        assert time.monotonic() - began < 8
        for called in silent:
            called.close()


def test_neither_side_accepts_one_with_another_key():
    with callers(HOST, number=1) as listening:
        with pytest.raises(ConnectionError):
            connect(listening.address, b"another key of many letters")
        with pytest.raises(TimeoutError):
            listening.next(timeout_s=0.3)
    with socket.create_server((HOST, 0)) as false:

        def play_the_listener() -> None:
            called, _ = false.accept()
            with called:
                called.sendall(b"n" * keyed_sockets.NONCE)
                called.recv(keyed_sockets.NONCE)
                called.sendall(called.recv(32))  # the caller's own proof

        threading.Thread(target=play_the_listener, daemon=True).start()
        with pytest.raises(KeyRefusedError):
            connect(false.getsockname()[:2], b"a key")


def test_a_listener_is_bound_to_its_address_and_is_gone_afterwards():
    with callers(HOST, number=1) as listening:
        assert listening.address[0] == HOST
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", listening.address[1]), timeout=2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listening.address, timeout=2)


def test_a_store_is_bound_to_its_address_and_knows_forged_values():
    from torch.distributed import TCPStore

    store = serve_store(HOST)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), timeout=2)
    set_signed(store, "where", "/dev/shm/a", secret="s")
    assert get_signed(store, "where", secret="s") == "/dev/shm/a"
    stranger = TCPStore(HOST, store.port, wait_for_workers=False)
    signed = stranger.get("where").decode()
    for forged in ("/etc/passwd", signed.replace("/dev/shm/a", "/etc/passwd"), "", "\xff" * 80):
        stranger.set("where", forged)
        with pytest.raises(ForgedValueError):
            get_signed(store, "where", secret="s")
    stranger.set("another", signed)  # a true value in another place
    with pytest.raises(ForgedValueError):
        get_signed(store, "another", secret="s")
