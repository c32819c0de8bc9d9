"""Engines and ranks that are actors of Ray do what those of this process do, and outlive faults."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.routing import Homes
from rolecall.cluster.session import RaySession
from rolecall.cluster.supervised_actors import LostError, ask
from rolecall.config.cluster import RayClusterConfig
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError, RunEndingError
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.interfaces.weights import Probe, PublishError
from rolecall.core.types import Floats
from rolecall.engines.backend import engine_backend
from rolecall.learners.local import LocalLearner
from rolecall.models.language_model import LanguageModel
from rolecall.runtime.scratch import MEMORY, SHARED
from rolecall.setup.on_cluster import make_pools, make_replicas
from tests.cluster.conftest import SECTION
from tests.cluster.killing import ENGINE, actors
from tests.toy import language_model, relay_config

pytestmark = [pytest.mark.slow, pytest.mark.alone]
# One that is stopped is missed when `cluster.start_timeout_s` is over: ROLECALL_SLOW=1 waits.
STARTS = ["SIGKILL", "SIGSTOP"] if os.environ.get("ROLECALL_SLOW") else ["SIGKILL"]
TOKENS = (np.arange(12) * 7919 % 200).astype(np.int32)


def config_of(folder: Path, **changes) -> Config:
    engine = {"name": "local", "replicas": 2, "cache_gb": 0.05}
    return Config.model_validate(
        relay_config(folder, **{"engine": engine, "cluster": SECTION, **changes})
    )


@pytest.fixture
def engine(session, loop, model_folder):
    made = make_replicas(session, engine_backend(config_of(model_folder), ["a", "b"]))
    loop.run(made.start())
    yield made
    loop.run(made.close())


def request(number: int, *, task: str = "t", attempt: int = 0, max_tokens: int = 12) -> Request:
    sampling = Sampling(max_tokens=max_tokens)
    order = (task, attempt, (number,))
    return Request(f"r{task}{number}.{attempt}", "a", TOKENS, sampling, number, order)


def assert_sampled(model: LanguageModel, engine: ReplicatedEngine, loop) -> None:
    """All engines say what the model says."""
    wanted = probe_of(model).logprobs
    said = loop.run(said_by_each(engine))
    assert len(said) == len(engine.members)
    assert all(np.allclose(one, wanted, atol=1e-4) for one in said)


def probe_of(model: LanguageModel, version: int = 1) -> Probe:
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    return Probe("a", version, TOKENS, asyncio.run(learner.probe(TOKENS)), rounded=False)


async def said_by_each(engine: ReplicatedEngine) -> list[Floats]:
    members = await engine.some()
    found = await engine.engines.call_each(members, "score", "a", TOKENS[:1], TOKENS[1:], 1.0)
    return list(found.values())


async def changed_model(folder: Path, engine: ReplicatedEngine, *, to: Path) -> LanguageModel:
    """A model with other weights, which all engines have."""
    model = language_model(folder)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.write_weights(to)
    await engine.load_files("a", 1, to)
    return model


def until(condition, *, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_same_seed_gives_the_same_tokens_on_every_engine(engine, loop, model_folder):
    from rolecall.engines.local.engine import LocalEngine
    from rolecall.runtime.call_tree import IdleBarrier

    here = LocalEngine({"a": language_model(model_folder)}, barrier=IdleBarrier())
    for number in range(4):
        asked = request(number, task=f"t{number}")
        [found], [wanted] = loop.run(engine.generate(asked)), loop.run(here.generate(asked))
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert np.allclose(found.logprobs, wanted.logprobs, atol=1e-5)


def test_an_episode_stays_where_its_prefix_is_and_tasks_are_spread(engine):
    homes, members = Homes(), engine.members
    turns = [[homes.choose(f"t{task}", 0, members) for _ in range(3)] for task in range(8)]
    assert all(len({member.number for member in found}) == 1 for found in turns)
    numbers = []
    for task in range(8):
        member = homes.choose(f"s{task}", 0, members)
        member.load += 1
        numbers.append(member.number)
    assert sorted(numbers) == [0] * 4 + [1] * 4


def test_published_weights_are_on_every_engine(engine, loop, model_folder, tmp_path):
    model = language_model(model_folder)
    assert_sampled(model, engine, loop)
    for version in (1, 2):
        with torch.no_grad():
            for _, parameter in model.named_parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        model.write_weights(tmp_path / str(version))
        loop.run(engine.load_files("a", version, tmp_path / str(version)))
        loop.run(engine.prove(probe_of(model, version)))
        assert_sampled(model, engine, loop)
    [said] = loop.run(engine.generate(request(0)))
    assert set(said.versions) == {2}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_engine_costs_no_request_and_comes_back_with_the_newest_weights(
    how, engine, loop, model_folder, tmp_path, caplog
):
    """Killed, or silent for longer than its heartbeat."""
    model = loop.run(changed_model(model_folder, engine, to=tmp_path / "new"))
    loop.run(engine.prove(probe_of(model)))
    assert_sampled(model, engine, loop)
    requests = [request(n, task=f"t{n}", max_tokens=60) for n in range(8)]
    wanted = [loop.run(engine.generate(each))[0].tokens.tolist() for each in requests]
    victim = engine.members[0]
    first = victim.place.pid

    async def meanwhile():
        asked = [asyncio.create_task(engine.generate(each)) for each in requests]
        await asyncio.sleep(0.05)
        os.kill(first, how)
        found = [done[0].tokens.tolist() for done in await asyncio.gather(*asked)]
        while not victim.restarts or not all(member.serves for member in engine.members):
            await asyncio.sleep(0.05)
        return found

    assert loop.run(asyncio.wait_for(meanwhile(), 120)) == wanted
    assert victim.place.pid != first
    assert_sampled(model, engine, loop)
    until(lambda: not Path(f"/proc/{first}").exists())
    [told] = [r.getMessage() for r in caplog.records if "was lost" in r.getMessage()]
    assert "engine 0 of a,b" in told
    assert "\n" not in told


async def prove_with_wrong(engine: ReplicatedEngine, right: Probe, wrong: Path, numbers) -> list:
    """Some have got other weights than the learner's; answers that were asked for before that."""
    for number in numbers:
        await ask(engine.members[number], "load_files", "a", 1, wrong)
    asked = [asyncio.create_task(engine.generate(request(n, task=f"t{n}"))) for n in range(8)]
    done, _ = await asyncio.wait(asked, timeout=1.0)
    assert not done
    await engine.prove(right)
    return [(await task)[0] for task in asked]


def test_an_engine_with_wrong_weights_gives_no_answer_and_is_started_again(
    engine, loop, model_folder, tmp_path, caplog
):
    """What it has sampled is asked of another one, and is what right weights sample."""
    language_model(model_folder).write_weights(tmp_path / "wrong")  # an update was lost
    model = loop.run(changed_model(model_folder, engine, to=tmp_path / "new"))
    found = loop.run(prove_with_wrong(engine, probe_of(model), tmp_path / "wrong", [0]))

    async def come_back() -> None:
        while not engine.members[0].serves:
            await asyncio.sleep(0.05)

    loop.run(asyncio.wait_for(come_back(), 60))
    assert [member.restarts for member in engine.members] == [1, 0]
    assert_sampled(model, engine, loop)
    for number, answer in enumerate(found):
        [wanted] = loop.run(engine.generate(request(number, task=f"t{number}")))
        assert answer.tokens.tolist() == wanted.tokens.tolist()
        assert np.allclose(answer.logprobs, wanted.logprobs, atol=1e-5)
    [told] = [r.getMessage() for r in caplog.records if "was lost" in r.getMessage()]
    assert re.search(r"engine 0 .* version 1 .* are off by \S+ nats from the learner's", told)


def test_where_all_engines_have_wrong_weights_the_run_ends(engine, loop, model_folder, tmp_path):
    language_model(model_folder).write_weights(tmp_path / "wrong")
    model = loop.run(changed_model(model_folder, engine, to=tmp_path / "new"))
    with pytest.raises(PublishError, match=r"^after publishing 'a' version 1 .* are off by"):
        loop.run(prove_with_wrong(engine, probe_of(model), tmp_path / "wrong", [0, 1]))
    assert [member.restarts for member in engine.members] == [0, 0]


def test_an_engine_that_comes_between_publication_and_probe_waits_for_it(
    engine, loop, model_folder, tmp_path
):
    async def go() -> None:
        model = await changed_model(model_folder, engine, to=tmp_path / "new")
        member, old = engine.members[0], engine.members[0].actor
        os.kill(member.place.pid, signal.SIGKILL)
        while member.actor is old or not member.serves:
            await asyncio.sleep(0.05)
        asked = [asyncio.create_task(engine.generate(request(n, task=f"t{n}"))) for n in range(8)]
        done, _ = await asyncio.wait(asked, timeout=1.0)
        assert not done
        await engine.prove(await asyncio.to_thread(probe_of, model))
        await asyncio.gather(*asked)

    loop.run(asyncio.wait_for(go(), 120))


def test_errors_of_an_actor_that_is_gone_do_not_touch_the_one_that_took_its_place(engine, loop):
    """Many requests lose one actor, and some of them learn of it late."""
    member, old = engine.members[0], engine.members[0].actor
    os.kill(member.place.pid, signal.SIGKILL)

    async def until_it_serves_again():
        while member.actor is old or not member.serves:
            await said_by_each(engine)
            await asyncio.sleep(0.05)

    loop.run(asyncio.wait_for(until_it_serves_again(), 60))
    pid = member.place.pid
    engine.lost(member, LostError("it had ended", old))
    assert member.serves
    loop.run(engine.generate(request(0)))
    assert (member.restarts, member.place.pid) == (1, pid)


def test_calls_at_once_wait_for_one_start(session, loop, model_folder):
    engine = make_replicas(session, engine_backend(config_of(model_folder), ["a"]))

    async def asked():
        return await asyncio.gather(*(engine.generate(request(n, task=f"t{n}")) for n in range(4)))

    assert len(loop.run(asked())) == 4
    assert [member.restarts for member in engine.members] == [0, 0]
    loop.run(engine.close())


@pytest.mark.parametrize("how", STARTS)
def test_an_engine_that_is_lost_while_it_starts_is_started_again(how, session, loop, model_folder):
    session.section = RayClusterConfig(**{**SECTION, "heartbeat_s": 10.0}, start_timeout_s=60)
    engine = make_replicas(session, engine_backend(config_of(model_folder), ["a"]))

    async def go() -> None:
        starting = asyncio.create_task(engine.start())
        while not actors(ENGINE):
            await asyncio.sleep(0.01)
        os.kill(actors(ENGINE)[0], signal.Signals[how])
        await starting

    try:
        loop.run(asyncio.wait_for(go(), 200))
        assert sorted(member.restarts for member in engine.members) == [0, 1]
        assert len(loop.run(said_by_each(engine))) == 2
    finally:
        loop.run(engine.close())
        session.section = RayClusterConfig(**SECTION)


def test_an_engine_that_is_lost_too_often_ends_the_run_with_its_cause(session, loop, model_folder):
    section = {**SECTION, "restarts": 0}
    session.section = RayClusterConfig(**section)
    config = config_of(model_folder, engine={"name": "local", "cache_gb": 0.05}, cluster=section)
    engine = make_replicas(session, engine_backend(config, ["a"]))
    try:
        loop.run(engine.start())
        os.kill(engine.members[0].place.pid, signal.SIGKILL)
        with pytest.raises(RunEndingError, match=r"engine 0 of a.* \(cluster\.restarts\)"):
            loop.run(asyncio.wait_for(engine.generate(request(0)), 60))
    finally:
        loop.run(engine.close())
        session.section = RayClusterConfig(**SECTION)


def test_an_address_that_does_not_answer_is_one_line(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(
        ray, "init", partial(_refused, ConnectionError("Could not find a Ray cluster\nmore"))
    )
    before = set(MEMORY.glob(f"{SHARED}*"))
    with pytest.raises(
        ConfigError, match=r"^cluster\.address: no Ray at '10\.0\.0\.1:6379': Could"
    ):
        RaySession(RayClusterConfig(name="ray", address="10.0.0.1:6379"))
    assert set(MEMORY.glob(f"{SHARED}*")) == before


def _refused(error, **_):
    raise error


def test_gpus_that_the_cluster_does_not_have_are_an_error(session, model_folder):
    ranks = {"name": "fsdp", "ranks": 2, "device": "cuda"}
    config = config_of(model_folder, learner=ranks)
    with pytest.raises(ConfigError, match=r"^cluster: .* need 6 GPUs \(own 6\), and Ray has 0"):
        make_pools(session, config)
    config = config_of(model_folder, learner={"device": "cuda"})
    with pytest.raises(ConfigError, match=r"^policies\.a\.learner: the trainer's process would"):
        make_pools(session, config)


@pytest.mark.parametrize("mode", ["recompute", "finish"])
def test_answers_under_way_go_on_with_new_weights_or_end_before_them(
    mode, session, loop, model_folder, tmp_path
):
    model = language_model(model_folder)
    model.write_weights(tmp_path / "new")
    session.section = RayClusterConfig(**SECTION, in_flight=mode)
    one = {"name": "local", "replicas": 1, "cache_gb": 0.05}
    engine = make_replicas(session, engine_backend(config_of(model_folder, engine=one), ["a"]))

    async def meanwhile():
        await engine.start()
        asked = [
            asyncio.create_task(engine.generate(request(n, task=f"t{n}", max_tokens=900)))
            for n in range(4)
        ]
        await asyncio.sleep(0.1)
        await engine.load_files("a", 1, tmp_path / "new")
        early = [task.done() for task in asked]
        await engine.trust("a")
        return early, [set(done[0].versions.tolist()) for done in await asyncio.gather(*asked)]

    ended, versions = loop.run(asyncio.wait_for(meanwhile(), 120))
    if mode == "finish":
        assert ended == [True] * 4
        assert versions == [{0}] * 4
    else:
        assert {0, 1} in versions
    loop.run(engine.close())
    session.section = RayClusterConfig(**SECTION)


JOINED = """
import ray
from ray._private.services import find_gcs_addresses
from rolecall.cluster.session import RaySession
from rolecall.config.cluster import RayClusterConfig
there = find_gcs_addresses()
session = RaySession(RayClusterConfig(name="ray", address="auto"))
print("there:", *there, flush=True)
print("joined:", ray.get_runtime_context().gcs_address, flush=True)
session.close()
"""


def test_auto_does_not_join_what_another_run_has_started_for_itself(session):
    """Nor what a killed run has left, which ends a minute or two later."""
    found = subprocess.run(
        [sys.executable, "-c", JOINED], capture_output=True, text=True, timeout=120, check=True
    )
    lines = [line.split() for line in found.stdout.splitlines()]
    [there] = [set(words) for name, *words in filter(None, lines) if name == "there:"]
    [joined] = [word for name, *words in filter(None, lines) if name == "joined:" for word in words]
    assert session.ray.get_runtime_context().gcs_address in there
    assert joined not in there


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_a_cluster_with_a_token_is_joined_with_it_or_not_at_all(mode, tmp_path, monkeypatch):
    """`ray start` asks for one where the machine has one; `auto` then takes no other cluster."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("1" * 64)
    command = [str(Path(sys.executable).with_name("ray"))]
    short = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # names of sockets are short
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    head = [*command, "start", "--head", f"--port={port}", f"--temp-dir={short}", "--block"]
    code = (
        "from rolecall.cluster.session import RaySession\n"
        "from rolecall.config.cluster import RayClusterConfig\n"
        "session = RaySession(RayClusterConfig(name='ray', address='auto'))\n"
        "import ray\n"
        "print('joined:', ray.get_runtime_context().gcs_address)\n"
        "session.close()"
    )
    with subprocess.Popen(head, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            started = any(b"Ray runtime started" in line for line in process.stdout)
            assert started
            address = f"{ray_address()}:{port}"
            asked = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=150,
                env=os.environ | {"RAY_ADDRESS": address, "RAY_AUTH_MODE": mode}, check=False,
            )  # fmt: skip
        finally:
            process.terminate()
    shutil.rmtree(short, ignore_errors=True)
    if mode == "token":
        assert f"joined: {address}" in asked.stdout
    else:
        assert "it asks for a token" in asked.stderr.splitlines()[-1]


def ray_address() -> str:
    from ray._private.services import get_node_ip_address

    return get_node_ip_address()
