"""What the learner notes on turns before an update comes from as few passes as it can."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rolecall.learners.local import LocalLearner
from rolecall.runtime.call_tree import task_factory
from rolecall.training import train_step
from rolecall.training.run import Run
from rolecall.training.train_step import annotate
from tests.algorithms.test_every_algorithm import Display, case, trainer_of

pytestmark = pytest.mark.slow


def played(config: dict, folder) -> tuple[Run, list]:
    trainer = trainer_of(config, folder, Display())

    async def collect():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await trainer.collector.collect(1)

    return trainer.run, asyncio.run(collect()).episodes


def noted(monkeypatch) -> list[list[str]]:
    """The turns of each pass without a gradient, as they come."""
    epochs = []
    forward = LocalLearner.forward

    def counted(learner, batch, **options):
        if not torch.is_grad_enabled():
            epochs.append(list(batch.turn_ids))
        return forward(learner, batch, **options)

    monkeypatch.setattr(LocalLearner, "forward", counted)
    return epochs


def test_values_and_log_probs_of_one_turn_come_from_one_pass(model_folder, tmp_path, monkeypatch):
    run, episodes = played(case(model_folder, "ppo"), tmp_path / "run")
    epochs = noted(monkeypatch)
    asyncio.run(train_step.credit(run, episodes))
    asyncio.run(train_step.update(run, episodes, step=1, apart=False))
    read = [turn_id for turns in epochs for turn_id in turns]
    wanted = sorted(turn.id for episode in episodes for turn in episode.turns)
    assert sorted(read) == wanted


@pytest.mark.parametrize("name", ["ppo", "several steps"])
def test_the_log_probs_that_an_update_begins_with_are_those_of_a_pass_of_their_own(
    model_folder, tmp_path, name
):
    run, episodes = played(case(model_folder, name), tmp_path / "run")
    expected = {}
    for policy, learner in run.learners.items():
        turns = [turn for e in episodes for turn in e.turns if turn.policy == policy]
        budget = run.config.learner.tokens_per_batch
        asyncio.run(annotate(learner, turns, {"prox_logprobs"}, budget=budget))
        expected |= {turn.id: turn.training.prox_logprobs for turn in turns}
        for turn in turns:
            turn.training.prox_logprobs = None
    asyncio.run(train_step.credit(run, episodes))
    asyncio.run(train_step.update(run, episodes, step=1, apart=False))
    for episode in episodes:
        for turn in episode.turns:
            assert turn.training.prox_logprobs.tolist() == expected[turn.id].tolist()
