"""What samples and what trains, policy by policy: engines, devices and dtypes that differ."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rolecall.config import registry
from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.core.interfaces.weights import PublishError
from rolecall.engines.inputs import EngineInputs
from rolecall.engines.several import SeveralEngines
from rolecall.placement.devices import takes_turns
from rolecall.runtime.scratch import (
    SHARED,
    remove_shared,
    scratch_folder,
    shared_folder,
)
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.training import train_step
from tests.algorithms.test_every_algorithm import Display, assert_equal, train, trainer_of
from tests.support.evidence import leave_to_evidence
from tests.toy import algorithm_cases, relay_config, write

HERE = Path(__file__).resolve()


PlainEngine = registry.resolve(
    "engine", f"{HERE.parents[2]}/examples/plain_engine.py:PlainEngine", key="engine.name"
)


class Reading(PlainEngine, FileEngine):
    forgetful = False

    def __init__(self, parts):
        super().__init__(parts)
        self.files: set[str] = set()

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        self.files |= {file.name for file in folder.iterdir()}
        if not self.forgetful:
            self.models[policy].load(folder)
        self.versions[policy] = version


class Sleeping(PlainEngine):
    """Its memory is the learner's during updates."""

    def __init__(self, parts):
        super().__init__(parts)
        self.awake, self.seen = {"weights", "cache"}, []

    async def generate(self, request):
        assert self.awake == {"weights", "cache"}
        return await super().generate(request)

    async def score(self, policy, prompt, tokens, *, temperature):
        assert self.awake == {"weights", "cache"}
        self.seen.append("score")
        return await super().score(policy, prompt, tokens, temperature=temperature)

    def load(self, policy, version, weights):
        assert "weights" in self.awake
        self.seen.append("load")
        super().load(policy, version, weights)

    async def sleep(self, *, weights: bool) -> None:
        self.awake -= {"weights", "cache"} if weights else {"cache"}
        self.seen.append("sleep")

    async def wake(self, part) -> None:
        self.awake.add(part)
        self.seen.append(part)


def config_of(config: dict, folder: Path):
    return load(write(folder / "team.yaml", config))


def test_a_policys_section_says_what_differs(model_folder, tmp_path):
    config = relay_config(
        model_folder, engine={"cache_gb": 0.5, "max_sequences": 7}, learner={"dtype": "bfloat16"}
    )
    config["policies"]["a"] |= {"engine": {"max_sequences": 3}, "learner": {"offload": True}}
    config["policies"]["b"]["engine"] = f"{HERE}:reading"
    found = config_of(config, tmp_path)
    assert (found.get_engine("a").cache_gb, found.get_engine("a").max_sequences) == (0.5, 3)
    assert found.get_engine("b").name == f"{HERE}:reading"
    assert found.get_learner("a").dtype == "bfloat16"
    assert found.get_learner("a").offload
    assert found.get_learner("b") == found.learner
    again = tmp_path / "again"
    again.mkdir()
    stored = found.model_dump(mode="json")
    assert config_of(stored, again).model_dump(mode="json") == stored


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["engine.ranks=2"], "engine.ranks: unknown key"),
        (["learner.ranks=2"], "learner.ranks: unknown key where learner.name is local"),
        (["learner=fsdp", "learner.rank=2"], "learner.rank: unknown key; did you mean ranks?"),
        (
            ["policies.solver.engine.dtype=bfloat16"],
            "policies.solver.engine.dtype: to sample in bfloat16 what is trained in float32, the "
            "engine needs weights of its own; set policies.solver.engine.separate_weights=true",
        ),
        (
            ["team.verifier.trainable=false", "policies.verifier.learner.dtype=bfloat16"],
            "policies.verifier.learner has no effect",
        ),
        (
            [f"policies.{name}.adapter.rank=4" for name in ("solver", "verifier")]
            + ["policies.verifier.engine.max_sequences=3"],
            "policies.verifier.engine: adapters of one base share its weights, and "
            "policies.solver has another engine",
        ),
        (
            ["policies.solver.adapter={rank: 4, targets: [lm_head]}"],
            "policies.solver.adapter: adapters work on linear layers before the head, not on "
            "'lm_head'",
        ),
        (
            ["learner.device=cuda:99"],
            "learner.device: this machine has no device 'cuda:99' (it has: cpu",
        ),
        (
            ["policies.solver.device=gpu"],
            "policies.solver.device: there is no device 'gpu'; write cpu, cuda",
        ),
        (
            ["policies.verifier.engine.transfer=direct"],
            "policies.verifier.engine.transfer: the embedded engine of this process takes tensors",
        ),
        (
            [
                "policies.solver.engine=vllm",
                "policies.solver.engine.transfer=direct",
                "policies.solver.adapter.rank=4",
            ],
            "policies.solver.engine.transfer: 'solver' is an adapter, which engines read from",
        ),
        (
            ["cluster=ray", "policies.solver.engine.transfer=direct"],
            "policies.solver.engine.transfer: the learner of 'solver' is in the trainer's process",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(overrides, told):
    from rolecall.config.load import find

    with pytest.raises(ConfigError) as raised:
        build(validate(load(find("math"), overrides)))
    [line] = raised.value.problems
    assert told in line


def test_two_engines_play_the_run_of_one(model_folder, tmp_path):
    """An exact engine says the same whatever it samples beside."""
    config = relay_config(model_folder)
    train(config, tmp_path / "one")
    config["policies"]["b"]["engine"] = {"cache_gb": 0.01}
    trainer = trainer_of(config, tmp_path / "two", Display())
    assert isinstance(trainer.run.engine, SeveralEngines)
    asyncio.run(trainer.train())
    assert_equal(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("sampling", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", leave_to_evidence(["grpo", "adapters"], keep=["grpo"]))
def test_sampler_and_learner_may_compute_in_different_dtypes(
    case, sampling, model_folder, tmp_path
):
    config = relay_config(model_folder, **algorithm_cases(model_folder)[case])
    training = "float32" if sampling == "bfloat16" else "bfloat16"
    config["engine"] = {"separate_weights": True, "dtype": sampling}
    config["learner"] = {"dtype": training}
    trainer = trainer_of(config, tmp_path / "run", Display())
    asyncio.run(trainer.train())
    engine = trainer.run.engine
    for name, learner in trainer.run.learners.items():
        sampled = engine._schedulers[name].policies[name].weights()
        trained = learner.model.weights()
        assert sampled.keys() == trained.keys()
        for key, tensor in sampled.items():
            assert torch.equal(tensor, trained[key].to(tensor.dtype)), key
    assert not trainer.alarm.exact
    found = [
        value for record in trainer.folder.read_metrics() for key, value in record.items()
        if key.endswith("mismatch_mean")
    ]  # fmt: skip
    assert found
    assert 1e-5 < max(found) < 0.02


def reading(parts: EngineInputs, *, forgetful: bool = False) -> PlainEngine:
    """An engine that takes weights from files, as one in another process does."""
    made = Reading(parts)
    made.forgetful = forgetful
    return made


WRITTEN = ["grpo", "adapters", "earlier opponents"]


@pytest.mark.parametrize("case", leave_to_evidence(WRITTEN, keep=["adapters"]))
def test_weights_reach_an_engine_as_files(case, model_folder, tmp_path):
    config = relay_config(model_folder, **algorithm_cases(model_folder)[case])
    config["engine"] = {"name": f"{HERE}:reading", "separate_weights": True}
    trainer = trainer_of(config, tmp_path / "files", Display())
    asyncio.run(trainer.train())
    wanted = "adapter_model.safetensors" if case == "adapters" else "model.safetensors"
    assert wanted in trainer.run.engine.files
    for name, learner in trainer.run.learners.items():
        for key, tensor in trainer.run.engine.models[name].weights().items():
            assert torch.equal(tensor, learner.model.weights()[key])


def test_files_that_an_engine_does_not_read_stop_the_run(model_folder, tmp_path):
    options = {"forgetful": True}
    config = relay_config(model_folder)
    config["engine"] = {"name": f"{HERE}:reading", "separate_weights": True, "options": options}
    trainer = trainer_of(config, tmp_path / "files", Display())
    with pytest.raises(PublishError, match="after publishing 'a' version 1"):
        asyncio.run(trainer.train())


def test_a_part_of_a_shared_folder_is_empty_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr("rolecall.runtime.scratch.MEMORY", tmp_path / "shm")
    monkeypatch.setattr("rolecall.runtime.scratch.tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "shm").mkdir()
    name, most = f"{SHARED}run", shutil.disk_usage(tmp_path).free
    for _ in range(2):
        folder = shared_folder(name, "a", room=1)
        assert list(folder.iterdir()) == []
        assert folder == tmp_path / "shm" / name / "a"
        (folder / "weights").touch()
    with pytest.raises(OSError, match="GB free and weights"):
        shared_folder(name, "b", room=2 * most)
    remove_shared(name)
    assert not (tmp_path / "shm" / name).exists()


def test_weights_that_shared_memory_cannot_hold_lie_on_the_disk(tmp_path, monkeypatch):
    usage = {str(tmp_path / "shm"): 5, str(tmp_path): 50}

    class Usage:
        def __init__(self, place):
            self.free = usage[str(place)]

    monkeypatch.setattr("rolecall.runtime.scratch.MEMORY", tmp_path / "shm")
    monkeypatch.setattr("rolecall.runtime.scratch.shutil.disk_usage", Usage)
    monkeypatch.setattr("rolecall.runtime.scratch.tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "shm").mkdir()
    with scratch_folder(room=10) as folder:
        assert Path(folder).parent == tmp_path
    with pytest.raises(OSError, match=r"0\.0 GB free .* TMPDIR"):
        scratch_folder(room=100)


def test_a_base_whose_weights_are_cut_off_is_one_line(model_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"policies\.a\.base: base '.*broken' cannot be loaded"):
        build(validate(config_of(relay_config(broken), tmp_path)))


def test_an_engine_sleeps_during_updates_and_is_awake_when_it_is_checked(model_folder, tmp_path):
    config = relay_config(model_folder, trainer={"steps": 2})
    config["engine"] = {"name": f"{HERE}:Sleeping", "separate_weights": True}
    display = Display()
    trainer = trainer_of(config, tmp_path / "run", display)
    asyncio.run(trainer.train())
    engine = trainer.run.engine
    published = ["weights", "load", "load", "cache", "score", "score"]
    assert engine.seen == [*published, "sleep", *published, "sleep", *published]
    assert display.last["step"] == 2


TURNS = [
    ({}, True),
    ({"max_staleness": 1}, False),
    ({"engine": {"device": "cuda:1"}}, False),
    ({"device": "cuda:1"}, True),
    ({"device": "cpu"}, False),
    ({"engine": {"device": "cuda:1", "tensor_parallel": 2}, "learner": {"ranks": 3}}, True),
]


@pytest.mark.parametrize(("changes", "expected"), TURNS)
def test_vllm_gives_back_the_gpus_on_which_something_is_updated(changes, expected, tmp_path):
    config = relay_config("some/base", engine={"name": "vllm"} | changes.get("engine", {}))
    learner = changes.get("learner", {})
    config["learner"] = {"name": "replicated", **learner} if learner else {}
    config["learner"]["device"] = changes.get("device", "auto")
    config["trainer"] |= {"max_staleness": changes.get("max_staleness", 0)}
    found = config_of(config, tmp_path)
    assert [takes_turns(found, name, auto="cuda:0") for name in "ab"] == [expected] * 2


def test_the_probe_of_rounded_weights_is_a_mean(model_folder, tmp_path):
    """In bfloat16 one token may be far off, where the mean of sixteen is not."""
    config = relay_config(model_folder, learner={"dtype": "bfloat16"})
    config["engine"] = {"separate_weights": True}
    run = build(validate(config_of(config, tmp_path)))
    assert set(run.publisher.rounded) == {"a", "b"}

    async def shifted(policy, prompt, tokens, *, temperature):
        return np.full(len(tokens), offset, np.float32) + await run.learners[policy].probe(
            np.concatenate([prompt, tokens])
        )

    run.engine.score = shifted
    offset = 0.1
    asyncio.run(train_step.publish(run, ["a"]))
    offset = 0.3
    with pytest.raises(PublishError):
        asyncio.run(train_step.publish(run, ["a"]))
