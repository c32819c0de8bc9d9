"""The package OpenEnv plays an environment of ours, and we train on an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rolecall.storage.episode_io import read_parquet
from tests.environment_server.serving import free_port
from tests.gateway.doors import compute, continues
from tests.toy import command

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/openenv"
PYTHON = ROOT / "build/openenv/bin/python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not PYTHON.is_file(), reason="make build/openenv installs it"),
]


@contextmanager
def running(*command: object, port: int) -> Iterator[str]:
    """The address of a server that is another process."""
    with subprocess.Popen([str(one) for one in command]) as process:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 90
        try:
            while True:
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not listen"
                try:
                    if httpx.get(f"{url}/health").is_success:
                        break
                except httpx.TransportError:
                    time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def test_a_client_of_the_package_plays_a_team_of_ours():
    port = free_port()
    serve = [sys.executable, "-m", "rolecall", "serve", "environments", "math_alone,math"]
    with running(*serve, "--protocol", "openenv", "--port", port, port=port) as url:
        for path, agents in (("", ["solver"]), ("/math", ["solver", "verifier"])):
            text = subprocess.check_output([PYTHON, EXAMPLE / "play.py", url + path], text=True)
            *turns, rewards = text.splitlines()
            assert turns[0].startswith("solver is to answer: ")
            assert rewards.startswith("rewards: {'solver': ")
            assert all(f"'{name}': " in rewards for name in agents)


def test_a_server_of_the_package_trains_an_agent(tmp_path):
    """It has places for 16 sessions, and a step plays 32 episodes."""
    port, output = free_port(), tmp_path / "run"
    with running(PYTHON, EXAMPLE / "sums.py", port, port=port) as url:
        less = ["rollout.groups=4", "rollout.group_size=8", "trainer.steps=2"]
        evaluation = ["evaluation.tasks=10", "evaluation.samples=1"]
        arguments = [f"environment.url={url}", *less, *evaluation, "--output", output]
        assert command("train", EXAMPLE / "solver.yaml", *arguments) == 0
    episodes = [
        episode
        for step in (1, 2)
        for episode in read_parquet(output / f"episodes/step-{step:06d}.parquet")
    ]
    assert len(episodes) == 64
    for episode in episodes:
        assert episode.error is None
        first, *second = episode.turns
        question = first.messages[-1].content
        right = [f"\\boxed{{{compute(question)}}}" in turn.text for turn in episode.turns]
        assert not any(right[:-1])
        assert episode.rewards == {"team": float(right[-1])}
        for turn in second:
            assert continues(turn, first)
    assert 0 < sum(len(episode.turns) == 2 for episode in episodes) < 64
