"""What would do nothing, and what cannot be written or reached, is one line that names its key."""

from __future__ import annotations

import socket
import time

import pytest

from rolecall.cluster.session import check_reachable
from rolecall.core.errors import ConfigError
from tests.cli.test_cli import refused
from tests.toy import relay_config, write

CASES = {
    "a deadline for rows": (
        ["algorithm=sft", "rollout.data=rows.jsonl", "rollout.deadline_s=5"],
        "rollout.deadline_s has no effect with rollout.data; remove it",
    ),
    "rewards of no weight": (
        ["rewards={correct: 0}"],
        "rewards.correct: all weights are 0, so nothing is paid",
    ),
    "one tracker twice": (
        ["trackers=[tensorboard, tensorboard]"],
        "trackers.1: tensorboard gets everything already",
    ),
    "an output below a file": (
        ["output=/etc/hostname/run"],
        "output: /etc/hostname is a file, so no run folder can be /etc/hostname/run",
    ),
    "an output that cannot be made": (["output=/proc/run"], "output: /proc/run cannot be"),
    "an output with a long name": ([f"output=runs/{'x' * 300}"], "cannot be made: File name too"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_line(name, model_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides, told = CASES[name]
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    assert told in refused("train", path, *overrides, capsys=capsys)


def test_an_address_where_nothing_listens_is_refused_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_reachable(address)
        check_reachable(f"ray://{address}")
    begun = time.monotonic()
    for wrong in (address, f"ray://{address}", "somewhere"):
        with pytest.raises(ConfigError, match=r"cluster\.address: nothing answers at"):
            check_reachable(wrong)
    assert time.monotonic() - begun < 5
    check_reachable("auto")
    check_reachable("local")
