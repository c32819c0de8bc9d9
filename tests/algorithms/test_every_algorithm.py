"""Every algorithm in whole runs: the same whether stopped and resumed or not, late or not."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rolecall.config.load import load
from rolecall.core.interfaces.weights import PublishError
from rolecall.critics.joint import JointCritic
from rolecall.explain.audit.report import audit
from rolecall.explain.turns import explain
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.collector import Collector
from rolecall.training.trainer import Trainer
from tests.support.evidence import leave_to_evidence
from tests.toy import LIKE_GRPO, algorithm_cases, crew_config, write

pytestmark = pytest.mark.slow

NAMES = list(algorithm_cases(Path("x")))
# One for each kind of state that a checkpoint holds: adapters, a reference and value heads, critics
# of the team, a mixer and its replay, earlier weights, a discriminator, what was played.
KINDS = ["maporl", "earlier opponents"]


class StoppedError(Exception):
    """Somebody pulled the plug."""


class Display:
    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.last = stop_after, {}

    def step(self, record):
        self.last = record
        if record["step"] == self.stop_after:
            raise StoppedError

    def evaluation(self, record):
        return None


def trainer_of(config: dict, folder: Path, display: Display) -> Trainer:
    loaded = load(write(folder.with_suffix(".yaml"), config))
    run_folder = RunFolder(folder)
    run_folder.start(loaded)
    return Trainer(build(validate(loaded)), run_folder, display=display)


def train(config: dict, folder: Path) -> Display:
    display = Display()
    trainer = trainer_of(config, folder, display)
    asyncio.run(trainer.train())
    trainer.folder.release()
    return display


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in a saved state, in one order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for key in value for t in tensors(value[key])]
    if isinstance(value, list | tuple):
        return [t for each in value for t in tensors(each)]
    return [torch.tensor(value)] if isinstance(value, int | float) else []


def saved(folder: Path) -> dict[str, list[torch.Tensor]]:
    """Weights, heads, critics, mixers, moments and states of the last checkpoint."""
    from safetensors.torch import load_file

    last = folder / "checkpoints" / (folder / "checkpoints/latest").read_text().strip()
    found = {str(p.relative_to(last)): tensors(torch.load(p)) for p in last.rglob("*.pt")}
    for path in last.rglob("*.safetensors"):
        found[str(path.relative_to(last))] = tensors(dict(sorted(load_file(path).items())))
    found["state"] = tensors(json.loads((last / "state.json").read_text())["states"])
    return found


def assert_equal(one: Path, other: Path) -> None:
    first, second = saved(one), saved(other)
    assert first.keys() == second.keys()
    for name in first:
        pairs = zip(first[name], second[name], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), f"{name} differs"


def case(folder: Path, name: str, **changes) -> dict:
    settings = {"evaluation": {"tasks": 0}} | algorithm_cases(folder)[name]
    return crew_config(folder, **{**settings, **changes})


@dataclass(frozen=True)
class Whole:
    """A run of an algorithm that nothing stopped; several tests look at the same one."""

    folder: Path
    display: Display
    before: dict[str, list[torch.Tensor]]  # weights of what is trained
    after: dict[str, list[torch.Tensor]]


@pytest.fixture(scope="module")
def whole(model_folder, tmp_path_factory):
    @cache
    def of(name: str) -> Whole:
        folder, display = tmp_path_factory.mktemp("whole") / "run", Display()
        trainer = trainer_of(case(model_folder, name), folder, display)
        trained = {n: part for n, part in trainer.run.parts.items() if hasattr(part, "stepper")}
        before = {n: part_weights(part) for n, part in trained.items()}
        asyncio.run(trainer.train())
        trainer.folder.release()
        return Whole(folder, display, before, {n: part_weights(p) for n, p in trained.items()})

    return of


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=KINDS))
def test_resumed_equals_uninterrupted(whole, model_folder, tmp_path, name):
    """The resumed run also has random delays in worlds and parallel workers of one role."""
    config = case(model_folder, name, environment={"max_delay_s": 0.01})
    stopped = trainer_of(config, tmp_path / "again", Display(stop_after=2))
    with pytest.raises(StoppedError):
        asyncio.run(stopped.train())
    stopped.folder.release()
    assert (tmp_path / "again/checkpoints/latest").read_text() == "step-1\n"
    train(config, tmp_path / "again")
    assert_equal(whole(name).folder, tmp_path / "again")


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=KINDS))
def test_the_credit_of_a_whole_run_is_right_and_explains_its_advantages(whole, name):
    folder = RunFolder.existing(whole(name).folder)
    result = audit(folder.path)
    assert result.findings == []
    assert result.checks[:2] == ["advantage changed", "reward overwritten"]
    explained = explain(folder, "best")
    assert any(one.reasons for one in explained), explained
    assert all(one.reasons or one.note for one in explained)


# These differ in credit alone, which tests of their own show, or by an option.
LIKE_OTHERS = LIKE_GRPO | {
    "a2c", "grpo with kl", "ma_airl", "marft_token", "qmix_value", "separate weights", "target_kl",
}  # fmt: skip


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep={*KINDS} | {*NAMES} - LIKE_OTHERS))
def test_weights_and_critics_move_and_metrics_are_finite(whole, name):
    run = whole(name)
    assert run.before
    for part_name, before in run.before.items():
        after = run.after[part_name]
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(np.isfinite(v) for v in run.display.last.values() if isinstance(v, float))


def part_weights(part: Any) -> list[torch.Tensor]:
    stepper = part.stepper
    return [parameter.detach().clone() for parameter in stepper.parameters]


def test_async_lag_zero_equals_sync(model_folder, tmp_path):
    """The trainer beside the plain loop of it."""
    config = case(model_folder, "several steps")
    train(config, tmp_path / "trainer")
    trainer = trainer_of(config, tmp_path / "loop", Display())
    run, folder = trainer.run, trainer.folder

    async def loop() -> None:
        asyncio.get_running_loop().set_task_factory(task_factory)
        collector = Collector(run, folder)
        for step in range(1, 4):
            rollout = await collector.collect(step)
            await train_step.credit(run, rollout.episodes)
            updates, _ = await train_step.update(run, rollout.episodes, step=step, apart=False)
            await train_step.publish(run, list(updates))

    asyncio.run(loop())
    trainer.done = 3
    trainer._save()
    assert_equal(tmp_path / "trainer", tmp_path / "loop")


def test_stale_rollouts_stay_within_the_bound_and_overlap_updates(model_folder, tmp_path):
    config = case(
        model_folder, "separate weights",
        trainer={"steps": 6, "max_staleness": 2}, environment={"max_delay_s": 0.02},
    )  # fmt: skip
    display = train(config, tmp_path / "run")
    assert display.last["step"] == 6
    lags = []
    for step, file in enumerate(sorted((tmp_path / "run/episodes").glob("*.parquet")), start=1):
        for row in pq.read_table(file).to_pylist():
            lags.append(step - 1 - min(row["versions"]))
    assert max(lags) == 2, "rollouts of later steps run while an update runs"
    assert min(lags) >= 0


def test_publish_moves_the_sampler_or_the_run_stops(model_folder, tmp_path, monkeypatch):
    config = case(model_folder, "separate weights")
    trainer = trainer_of(config, tmp_path / "run", Display())

    def forgetful(policy, version, weights):
        return None

    monkeypatch.setattr(trainer.run.engine, "load", forgetful)
    with pytest.raises(PublishError, match="after publishing 'a' version 1"):
        asyncio.run(trainer.train())


def test_two_algorithms_with_critics_of_one_kind_keep_both(model_folder, tmp_path):
    """Each fits on its own critic's values, and a checkpoint holds both."""
    config = case(model_folder, "mappo", trainer={"steps": 1})
    config["team"]["last"]["algorithm"] = {"name": "mappo", "lam": 0.5}
    trainer = trainer_of(config, tmp_path / "run", Display())
    first, second = trainer.run.algorithm_groups
    assert isinstance(first.critic, JointCritic)
    assert isinstance(second.critic, JointCritic)
    assert len([name for name in trainer.run.parts if name.startswith("critic.team.")]) == 2
    first.critic.head.bias.data.fill_(3.0)  # the two expect other rewards
    second.critic.head.bias.data.fill_(-2.0)
    targets = {}
    for part, expected in ((first, 3.0), (second, -2.0)):

        def fit(episodes, found, *, epochs, critic=part.critic, expected=expected):
            assert len(episodes) == len(found)
            targets[expected] = [
                value
                for e in episodes
                for t in e.turns
                for value in t.training.team_values.values()
            ]
            return {"loss": 0.0}

        part.critic.fit = fit
    asyncio.run(trainer.train())
    for expected, values in targets.items():
        assert set(values) == {expected}, "heads start at 0, so the bias is the value"


@pytest.mark.parametrize("name", leave_to_evidence(["mappo", "happo", "qmix"], keep=[]))
def test_a_critic_with_a_short_context_ends_no_run_and_resumes(model_folder, tmp_path, name):
    """Every transcript here is longer than the 48 ids that the critic's model reads."""
    short = tmp_path / "short"
    shutil.copytree(model_folder, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 48}))
    config = case(model_folder, name, trainer={"steps": 2, "save_every": 1})
    [critic] = config["critics"].values()
    critic["base"] = str(short)
    train(config, tmp_path / "whole")
    stopped = trainer_of(config, tmp_path / "again", Display(stop_after=2))
    with pytest.raises(StoppedError):
        asyncio.run(stopped.train())
    stopped.folder.release()
    train(config, tmp_path / "again")
    assert_equal(tmp_path / "whole", tmp_path / "again")
