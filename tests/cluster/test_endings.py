"""A line says how an actor ended, as far as that can be known."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecall.cluster.actor_process import settle_actor
from rolecall.cluster.endings import (
    UNKNOWN,
    Traces,
    add_cause,
    add_log,
    count_oom_kills,
    describe_death,
    read_traces,
)
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def session():
    made = RaySession(RayClusterConfig(name="ray", address="local"))
    yield made
    made.close()


class Victim:
    """An actor that ends in many ways."""

    def __init__(self, scratch: Path) -> None:
        self.place = settle_actor("victim", scratch, None)

    def locate(self):
        return self.place

    def end(self, how: str) -> None:
        print("the last words", flush=True)
        if how == "os._exit":
            os._exit(3)
        elif how == "sys.exit":
            sys.exit(3)
        elif how == "a wrong pointer":
            ctypes.string_at(0)
        elif how == "a stop that is followed by a kill":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.Signals[how])
        time.sleep(60)


def ending_of(session: RaySession, how: str) -> str:
    ray = session.ray
    actor = ray.remote(max_restarts=0, num_cpus=0)(Victim).remote(session.scratch)
    place = ray.get(actor.locate.remote())
    asked = actor.end.remote(how)
    if how.startswith("a stop"):
        until = time.monotonic() + 30
        while Path(f"/proc/{place.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until
        os.kill(place.pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayError) as raised:
        ray.get(asked)
    traces = ray.get(session.run_on(place.node, read_traces, place.log, place.oom_kills))
    return add_log(add_cause(describe_death(raised.value), traces), traces)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("SIGKILL", UNKNOWN),
        ("os._exit", UNKNOWN),
        ("a stop that is followed by a kill", UNKNOWN),
        ("SIGTERM", "it was ended by SIGTERM"),
        ("sys.exit", "exit code 3"),
        ("SIGABRT", "it crashed with SIGABRT"),
        ("a wrong pointer", "it crashed with SIGSEGV"),
    ],
)
def test_the_line_says_how_it_ended_and_what_it_wrote_last(session, how, wanted):
    told = ending_of(session, how)
    assert told.startswith(f"{wanted}; its log ends: ")
    assert "\n" not in told
    if "crashed" not in wanted:  # there a page about Python's threads follows
        assert "the last words" in told


def test_a_successor_is_not_blamed_for_the_crash_of_the_one_before(session):
    assert "SIGABRT" in ending_of(session, "SIGABRT")
    assert ending_of(session, "SIGKILL").startswith(UNKNOWN)


def test_an_actor_that_cannot_be_made_says_why(session):
    class Unmade:
        def __init__(self) -> None:
            raise ImportError("no such thing")

        def ask(self) -> None:
            return None

    ray = session.ray
    with pytest.raises(ray.exceptions.RayError) as raised:
        ray.get(ray.remote(max_restarts=0, num_cpus=0)(Unmade).remote().ask.remote())
    assert describe_death(raised.value) == "it could not be made: ImportError: no such thing"


def test_an_actor_that_cannot_be_reached_is_said_to_be_so():
    from ray.exceptions import ActorUnavailableError

    why = "The actor is temporarily unavailable: RpcError: RPC error: Socket closed"
    told = describe_death(ActorUnavailableError(why, b"3" * 16))
    assert told == "it could not be reached: RpcError: RPC error: Socket closed"


MONITORED = """
import ray, sys
from rolecall.cluster.endings import describe_death
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
class Victim:
    def wait(self):
        import time
        time.sleep(60)
try:
    ray.get(ray.remote(max_restarts=0)(Victim).remote().wait.remote())
except ray.exceptions.RayError as error:
    print("told:", describe_death(error))
"""


def test_rays_memory_monitor_is_named_in_one_line():
    limits = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "200"}
    found = subprocess.run(
        [sys.executable, "-c", MONITORED], env=os.environ | limits, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    [told] = [line for line in found.stdout.splitlines() if line.startswith("told:")]
    assert "Ray's memory monitor killed it, because its machine ran low on memory: " in told
    assert "more than 0.1% (RAY_memory_usage_threshold)" in told


def test_what_the_kernel_killed_for_memory_is_said_where_it_has_grown(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    assert read_traces(log, count_oom_kills()) == Traces("", 0, ["one", "two"])
    assert add_cause("why", Traces("", 0, [])) == "why"
    assert add_cause("why", Traces("", 2, [])).startswith("why; since it started, the kernel has")
    assert "2 processes" in add_cause("why", Traces("", 2, []))
    assert add_log("why", None) == "why; its machine says nothing either"
    assert add_log("why", Traces("", 0, [])) == "why; its log is empty"


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/a/b\n", "a/b/memory.events"),
        ("0::/a/b\n", "memory.events"),
        ("7:cpu,memory:/a\n0::/\n", "memory/a/memory.oom_control"),
        ("4:memory:/a\n0::/\n", "memory/memory.oom_control"),
    ],
)
def test_both_kinds_of_cgroup_count(membership, file, tmp_path):
    """Where a container sees its cgroup as the root, the path of the machine is not there."""
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("low 0\noom 4\noom_kill 3\n")
    (tmp_path / "cgroup").write_text(membership)
    assert count_oom_kills(tmp_path / "cgroup", tmp_path) == 3


def test_a_machine_that_counts_nothing_counts_no_kill(tmp_path):
    assert count_oom_kills(tmp_path / "none", tmp_path) == 0
    (tmp_path / "cgroup").write_text("4:memory:/a\n0::/\n")
    assert count_oom_kills(tmp_path / "cgroup", tmp_path) == 0
