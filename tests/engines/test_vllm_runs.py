"""Whole runs that vLLM samples: one process or ranks train, adapters and all weights."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

import pytest

from rolecall.core.interfaces.weights import PublishError
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import relay_config

if importlib.util.find_spec("vllm") is None:  # to import it takes seconds
    pytest.skip("vLLM is an extra: make .venv/vllm", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

from tests.engines.test_vllm import make_model  # noqa: E402 - which skips without vLLM


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("tied"))


def config_of(base: Path, learner: dict, *, adapted: bool) -> dict:
    config = relay_config(
        base, trainer={"steps": 2}, evaluation={"tasks": 0}, learner={"device": "cpu", **learner},
        engine={"name": "vllm", "eager": True, "cache_gb": 0.05, "max_length": 256},
    )  # fmt: skip
    for policy in config["policies"].values():
        policy |= {"adapter": {"rank": 4}} if adapted else {}
    if not adapted:  # one engine is enough
        config["team"] = {name: {**agent, "policy": "a"} for name, agent in config["team"].items()}
        del config["policies"]["b"]
    return config


def descendants(pid: int) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found |= {int(folder.name)} | descendants(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("learner", "adapted", "transfer"),
    [
        ({}, True, "files"),
        ({"name": "fsdp", "ranks": 2}, False, "files"),
        ({"name": "fsdp", "ranks": 2}, False, "direct"),
        ({}, False, "direct"),
    ],
    ids=["adapters", "two ranks' files", "two ranks' memory", "the trainer's memory"],
)
def test_engine_logprobs_equal_learner_logprobs(learner, adapted, transfer, base, tmp_path):
    there, display = descendants(os.getpid()), Display()
    config = config_of(base, learner, adapted=adapted)
    config["engine"]["transfer"] = transfer
    trainer = trainer_of(config, tmp_path / "run", display)
    try:
        asyncio.run(trainer.train())
    finally:
        asyncio.run(trainer.run.close())
    found = [value for key, value in display.last.items() if key.endswith("/mismatch_max")]
    assert len(found) == 3, "each agent's"
    assert max(found) <= 1e-4
    assert {learner.version for learner in trainer.run.learners.values()} == {2}
    assert descendants(os.getpid()) <= there


def test_publish_moves_the_sampler_or_the_run_stops(base, tmp_path):
    """Adapters that never arrive are noticed at the first publication that changes anything."""
    trainer = trainer_of(config_of(base, {}, adapted=True), tmp_path / "run", Display())

    async def lost(policy: str, version: int, folder: Path) -> None:
        return None

    trainer.run.engine.load_files = lost
    try:
        with pytest.raises(PublishError, match="after publishing 'a' version 1"):
            asyncio.run(trainer.train())
    finally:
        asyncio.run(trainer.run.close())
