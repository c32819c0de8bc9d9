"""Weights that a learner sends to engines on Ray, and what becomes of them when one is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.config.optimizer import Optimizer
from rolecall.core.interfaces.learner import Rendezvous, Written
from rolecall.core.interfaces.weights import WeightSource
from rolecall.engines.backend import engine_backend
from rolecall.learners.local import LocalLearner
from rolecall.models.language_model import LanguageModel
from rolecall.setup.on_cluster import make_replicas
from tests.cluster.test_ray import assert_sampled, config_of, probe_of, request
from tests.toy import language_model

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture
def engine(session, loop, model_folder) -> Iterator[ReplicatedEngine]:
    section = {"name": "local", "replicas": 2, "cache_gb": 0.05, "transfer": "direct"}
    made = make_replicas(
        session, engine_backend(config_of(model_folder, engine=section), ["a", "b"])
    )
    loop.run(made.start())
    yield made
    loop.run(made.close())


class Source(WeightSource):
    """A learner in this process; it says how often it has written and sent."""

    def __init__(self, folder: Path, to: Path) -> None:
        self.model: LanguageModel = language_model(folder)
        self.learner = LocalLearner(self.model, Optimizer(lr=1e-3), total_updates=1)
        self.to, self.written, self.sent = to, 0, 0
        self.has_moved = False
        self.victim: tuple[int, signal.Signals] | None = None  # is killed before weights are sent

    def change(self) -> None:
        with torch.no_grad():
            for _, parameter in self.model.named_parameters():
                parameter += 0.1 * torch.randn_like(parameter)

    can_send = True

    async def files_anywhere(self) -> Written | None:
        if self.has_moved:
            return None
        self.written += 1
        self.model.write_weights(self.to)
        return Written(self.to)

    async def send(self, at: Rendezvous) -> None:
        self.sent += 1
        if self.victim is not None:
            os.kill(*self.victim)
        await self.learner.send(at)


async def all_serve(engine: ReplicatedEngine) -> None:
    while not all(member.serves for member in engine.members):
        await asyncio.sleep(0.05)


def test_sent_weights_are_on_every_engine_and_in_no_file(
    engine, loop, model_folder, tmp_path, caplog
):
    source = Source(model_folder, tmp_path)
    for version in (1, 2, 3):
        source.change()
        loop.run(engine.publish("a", version, source))
        loop.run(engine.prove(probe_of(source.model, version)))
        assert_sampled(source.model, engine, loop)
        [said] = loop.run(engine.generate(request(0)))
        assert set(said.versions) == {version}
    assert (source.sent, source.written) == (3, 0)
    assert not caplog.records


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_is_lost_while_weights_come_keeps_nobody_waiting(
    how, engine, loop, model_folder, tmp_path
):
    """The other one has them, from files where need be, and later both."""
    source = Source(model_folder, tmp_path)
    source.change()
    loop.run(engine.publish("a", 1, source))
    loop.run(engine.prove(probe_of(source.model, 1)))
    victim, other = engine.members
    source.change()
    probe = probe_of(source.model, 2)

    async def publish() -> None:
        source.victim = victim.place.pid, how
        await engine.publish("a", 2, source)
        assert other.serves
        await engine.prove(probe)
        source.victim = None
        await all_serve(engine)

    loop.run(asyncio.wait_for(publish(), 120))
    assert [victim.restarts, other.restarts] == [1, 0]
    assert_sampled(source.model, engine, loop)
    source.change()
    loop.run(engine.publish("a", 3, source))  # the two meet anew
    loop.run(engine.prove(probe_of(source.model, 3)))
    assert_sampled(source.model, engine, loop)
    assert (source.sent, source.written) == (3, 1)


def test_an_engine_that_comes_back_during_an_update_waits_for_the_next_weights(
    engine, loop, model_folder, tmp_path
):
    source = Source(model_folder, tmp_path)
    source.change()
    loop.run(engine.publish("a", 1, source))
    loop.run(engine.prove(probe_of(source.model, 1)))
    victim = engine.members[0]
    source.has_moved = True
    source.change()
    probe = probe_of(source.model, 2)

    async def lose() -> None:
        os.kill(victim.place.pid, signal.SIGKILL)
        while not victim.restarts or victim.place is None:
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        assert not victim.serves
        source.has_moved = False
        await engine.publish("a", 2, source)
        await engine.prove(probe)
        await all_serve(engine)

    loop.run(asyncio.wait_for(lose(), 120))
    assert_sampled(source.model, engine, loop)
