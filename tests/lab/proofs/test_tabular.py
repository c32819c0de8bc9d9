"""What stands in for language models in the proofs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolecall.algorithms.mappo import Mappo
from rolecall.runtime.turn_order import joint_steps
from rolecall_lab.proofs.tabular import (
    Table,
    agent_turns,
    gradient,
    make_episodes,
    overlap_states,
    pack_turns,
    update,
)

pytestmark = [pytest.mark.slow, pytest.mark.evidence]

COIN = {"a": Table([[0.5, 0.5]] * 3), "b": Table([[0.9, 0.1]] * 3)}


def played(**options):
    said = np.array([[0, 1], [1, 1], [1, 0], [0, 0]], dtype=np.int32)
    return make_episodes(COIN, said, {"team": np.array([1.0, 0.0, 0.0, 2.0])}, **options)


def test_a_table_samples_as_often_as_it_says():
    table = Table([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    states = np.repeat([0, 1], 20_000).astype(np.int32)
    actions = table.sample(states, np.random.default_rng(0))
    share = np.bincount(actions[:20_000]) / 20_000
    assert share == pytest.approx([0.2, 0.5, 0.3], abs=0.01)
    assert not actions[20_000:].any()


def test_the_forward_pass_says_what_the_sampler_said():
    episodes = played(states=np.array([0, 1, 2, 2], dtype=np.int32))
    algorithm = Mappo()
    for turn in agent_turns(episodes, "b"):
        turn.advantages = np.ones(1, dtype=np.float32)
    (batch,) = pack_turns(agent_turns(episodes, "b"), algorithm)
    found = COIN["b"].outputs(batch)
    assert torch.equal(found.logprobs.detach(), torch.from_numpy(batch.old_logprobs))
    assert int(batch.mask.sum()) == 4
    assert found.logprobs.detach()[batch.mask == 0].eq(0).all()


def test_agents_speak_at_once_or_in_turn():
    assert [len(step) for step in joint_steps(played()[0])] == [2]
    assert [len(step) for step in joint_steps(played(in_turn=True)[0])] == [1, 1]


def test_attempts_share_a_task_and_later_rounds_have_names_of_their_own():
    first, second = played(attempts=2), played(attempts=2, start=4)
    assert [e.task.id for e in first + second] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert [e.attempt for e in second] == [0, 1, 0, 1]
    ids = [turn.id for episode in first + second for turn in episode.turns]
    assert len(set(ids)) == 16


def test_a_gradient_is_divided_by_all_turns_and_a_step_descends_it():
    table = Table([[0.5, 0.5]])
    episodes = make_episodes(
        {"a": table}, np.array([[1], [0]], dtype=np.int32), {"team": np.array([1.0, 0.0])}
    )
    turns = agent_turns(episodes, "a")
    for turn, advantage in zip(turns, (1.0, 0.0), strict=True):
        turn.advantages = np.full(1, advantage, dtype=np.float32)
    slope = gradient(table, turns, Mappo())
    assert slope.tolist() == [[0.25, -0.25]]
    before = table.logits.detach().clone()
    update(table, turns, Mappo(epochs=1), lr=2.0)
    assert torch.allclose(table.logits.detach(), before - 2.0 * slope)


def test_states_share_a_step():
    """A gradient on state 0 alone moves states 1 and 2 by their shares of it."""
    table = Table([[0.5, 0.5]] * 3)
    overlap_states(table, (0, 2), 0.9)
    assert table.probabilities() == pytest.approx(0.5)
    before = table.logits.detach().clone()
    episodes = make_episodes(
        {"a": table}, np.array([[1], [0]], dtype=np.int32), {"team": np.array([1.0, 0.0])}
    )
    turns = agent_turns(episodes, "a")
    for turn, advantage in zip(turns, (1.0, 0.0), strict=True):
        turn.advantages = np.full(1, advantage, dtype=np.float32)
    update(table, turns, Mappo(epochs=1), lr=1.0)
    moved = (table.logits.detach() - before)[:, 1] / 0.25
    assert moved.tolist() == pytest.approx([1.0, 0.0, 0.9], abs=1e-5)
