"""What stands in torchrun's store is not trusted, and the key of the ranks does not stand there."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import stat
import threading
from multiprocessing import Process

import pytest

from rolecall.core.errors import ConfigError, RunEndingError
from rolecall.learners.ranks import torchrun
from rolecall.learners.ranks.torchrun import FILE, VARIABLE, shared_key
from rolecall.runtime.bound_store import serve_store


@pytest.fixture
def store(monkeypatch, tmp_path):
    """The store of torchrun's agent, whose ranks are of one machine."""
    made = serve_store("127.0.0.1")
    for name, value in {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(made.port), "WORLD_SIZE": "2", "RANK": "1",
        "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none", "XDG_CACHE_HOME": str(tmp_path),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(VARIABLE, raising=False)
    return made


class Runs:
    def __reduce__(self):
        return os.mkdir, (os.environ["XDG_CACHE_HOME"] + "/ran",)


def test_a_strangers_value_runs_nothing(store, tmp_path):
    store.set(torchrun.ADDRESS, pickle.dumps(Runs(), protocol=0).decode())
    with pytest.raises(RunEndingError, match="no address of a trainer"):
        torchrun.serve_trainer(lambda connection: None)
    assert not (tmp_path / "ran").exists()


def test_a_strangers_trainer_is_not_served(store):
    with socket.create_server(("127.0.0.1", 0)) as false:

        def answer() -> None:
            called, _ = false.accept()
            with called:
                called.sendall(secrets.token_bytes(64))
                called.recv(64)

        threading.Thread(target=answer, daemon=True).start()
        store.set(torchrun.ADDRESS, f'["127.0.0.1", {false.getsockname()[1]}]')
        with pytest.raises(RunEndingError, match=f"does not know this rank's key; set {VARIABLE}"):
            torchrun.serve_trainer(lambda connection: pytest.fail("it was served"))


def test_ranks_and_trainer_find_one_another_and_the_store_holds_no_key(store, monkeypatch):
    served = threading.Event()
    rank = threading.Thread(target=torchrun.serve_trainer, args=(lambda _: served.set(),))
    rank.start()
    [(number, (_, place))] = torchrun.accept_ranks(timeout_s=10).items()
    rank.join(10)
    assert (number, place, served.is_set()) == (1, 1, True)
    values = [store.get(key) for key in store.list_keys() if key != "init/"]
    assert all(shared_key() not in value for value in values)


def test_the_key_is_made_once_and_nobody_else_reads_it(store, tmp_path):
    file = tmp_path / "rolecall" / FILE
    processes = [Process(target=shared_key) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    key = shared_key()
    assert len(key) == 64
    assert key == shared_key()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [FILE]
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=f"others may read .*{VARIABLE}"):
        shared_key()
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match="no regular file"):
        shared_key()


def test_a_key_of_the_environment_must_be_long_enough(store, monkeypatch):
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(ConfigError, match="a key of 5 letters can be guessed"):
        shared_key()
    monkeypatch.setenv(VARIABLE, "long enough to be one")
    assert shared_key() == b"long enough to be one"
