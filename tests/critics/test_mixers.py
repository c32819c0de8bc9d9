"""Known answers of the mixers, and what must hold for any utilities, states and teams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from rolecall.core.gae import lambda_targets
from rolecall.critics.mixers import (
    Qmix,
    Vdn,
    advantages,
    double_q_target,
    monotone_mix,
)

Q = torch.tensor([[1.2, 0.3]])
V = torch.tensor([[1.0, 0.5]])
BOTH = torch.ones(1, 2, dtype=torch.bool)
NO_STATE = torch.zeros(1, 3)


def fixed(q, state, active):
    """QMIX of width 1 with |W1| (.5, .5), b1 0, |w2| 2, b2 .1; the signs are not to matter."""
    w1 = torch.tensor([0.5, -0.5]).view(1, 2, 1)
    two = torch.tensor([[-2.0]])
    return monotone_mix(q, w1, b1=torch.zeros(1, 1), w2=two, b2=torch.tensor([0.1]))


def mixers(num_agents: int, state_size: int):
    return [Vdn(), *(Qmix(num_agents, state_size, seed=seed) for seed in range(3))]


def random_team(num_rows: int, num_agents: int, *, state_size: int = 5):
    generator = torch.Generator().manual_seed(num_rows * 100 + num_agents)
    q = 3.0 * torch.randn(num_rows, num_agents, generator=generator)
    state = torch.randn(num_rows, state_size, generator=generator)
    return q, state, torch.ones(num_rows, num_agents, dtype=torch.bool)


@pytest.mark.parametrize(("mixer", "value"), [(Vdn(), 1.5), (fixed, 1.6)])
def test_known_team_value_and_advantages(mixer, value):
    assert mixer(Q, NO_STATE, BOTH).item() == pytest.approx(value, rel=1e-6)
    gains = advantages(mixer, Q, V, NO_STATE, BOTH)
    assert gains.tolist() == [pytest.approx([0.2, -0.2], abs=1e-6)]


def test_a_bad_team_meets_the_bent_side_of_elu():
    value = fixed(torch.tensor([[-1.0, 0.0]]), NO_STATE, BOTH)
    assert value.item() == pytest.approx(-0.686939, abs=5e-7)


def test_one_agent_under_vdn_is_an_actor_critic():
    q, state, active = random_team(20, 1)
    v = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(advantages(Vdn(), q, v, state, active), q - v)


def test_vdn_advantages_are_differences_of_utilities():
    q, state, active = random_team(20, 4)
    v = torch.zeros(20, 4)
    assert torch.allclose(advantages(Vdn(), q, v, state, active), q, atol=1e-5)


def test_the_team_is_never_worse_off_when_a_utility_rises():
    q, state, active = random_team(200, 3)
    q.requires_grad_()
    for mixer in mixers(3, 5):
        (slopes,) = torch.autograd.grad(mixer(q, state, active).sum(), q)
        assert (slopes >= 0).all()
        assert (slopes > 0).any()


def test_the_best_joint_action_is_every_agents_own_best():
    _, state, active = random_team(50, 3)
    utilities = torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(0))
    own_best = utilities.argmax(-1)
    for mixer in mixers(3, 5):
        joint = list(itertools.product(range(4), repeat=3))
        values = torch.stack(
            [mixer(utilities[:, range(3), list(u)], state, active) for u in joint], dim=1
        )
        best = torch.tensor(joint)[values.argmax(1)]
        assert torch.equal(best, own_best)


@pytest.mark.parametrize("num_rows", [1, 7, 64])
@pytest.mark.parametrize("num_agents", [1, 2, 7, 9])
def test_an_inactive_agent_leaves_every_bit_of_the_team_value(num_rows, num_agents):
    q, state, active = random_team(num_rows, num_agents)
    more = torch.cat([q, torch.full((num_rows, 1), torch.nan)], 1)
    more_active = torch.cat([active, torch.zeros(num_rows, 1, dtype=torch.bool)], 1)
    for mixer in mixers(num_agents + 1, 5):
        alone = mixer(q, state, active)
        assert torch.equal(mixer(more, state, more_active), alone)
        gains = advantages(mixer, more, torch.zeros_like(more), state, more_active)
        assert torch.equal(gains[:, :-1], advantages(mixer, q, 0 * q, state, active))
        assert torch.equal(gains[:, -1], torch.zeros(num_rows))


def test_what_an_inactive_agent_would_have_said_does_not_matter():
    q, state, active = random_team(7, 4)
    active[:, 1] = False
    other = q.clone()
    other[:, 1] = 100.0
    for mixer in mixers(4, 5):
        assert torch.equal(mixer(q, state, active), mixer(other, state, active))
    without = [0, 2, 3]
    assert torch.equal(Vdn()(q, state, active), Vdn()(q[:, without], state, active[:, without]))


def test_an_inactive_agent_gets_no_gradient():
    q, state, active = random_team(7, 3)
    active[:, 2] = False
    q.requires_grad_()
    for mixer in mixers(3, 5):
        (slopes,) = torch.autograd.grad(mixer(q, state, active).sum(), q)
        assert not slopes[:, 2].any()


def test_qmix_tells_roles_apart_and_learns_their_embeddings():
    q, state, active = random_team(7, 2)
    mixer = Qmix(2, 5)
    assert not torch.allclose(mixer(q, state, active), mixer(q.flip(1), state, active))
    mixer(q, state, active).sum().backward()
    assert mixer.roles.weight.grad.abs().sum(1).gt(0).all()


def test_one_qmix_serves_teams_up_to_its_number_of_roles():
    mixer = Qmix(3, 5)
    for num_agents in (1, 2, 3):
        assert mixer(*random_team(4, num_agents)).shape == (4,)
    with pytest.raises(ValueError, match="4 agents, but 3 roles"):
        mixer(*random_team(4, 4))


def test_a_qmix_depends_on_its_seed_and_on_no_global_state():
    before = torch.get_rng_state()
    team = random_team(4, 2)
    first, same, other = (Qmix(2, 5, seed=seed)(*team) for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_known_lambda_targets():
    targets = lambda_targets([0.0, 1.0], [0.4], gamma=0.9, lam=0.8)
    assert targets.dtype == np.float64
    assert targets == pytest.approx([0.792, 1.0], abs=1e-12)


def test_lambda_spans_one_step_to_the_whole_return():
    rewards, values = [1.0, 0.0, 2.0], [5.0, 7.0]
    assert lambda_targets(rewards, values, gamma=0.5, lam=1.0) == pytest.approx([1.5, 1.0, 2.0])
    assert lambda_targets(rewards, values, gamma=0.5, lam=0.0) == pytest.approx([3.5, 3.5, 2.0])
    assert lambda_targets([3.0], [], gamma=0.5, lam=0.5) == pytest.approx([3.0])


def test_a_value_too_many_is_refused():
    with pytest.raises(ValueError, match="2 rewards need one value less, not 2"):
        lambda_targets([0.0, 1.0], [0.4, 0.5], gamma=0.9, lam=0.8)


def target_of_two_rows(mixer, *, target):
    live = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]).expand(2, -1, -1).clone().requires_grad_()
    return double_q_target(
        mixer,
        torch.tensor([1.0, 1.0]),
        done=torch.tensor([False, True]),
        live=live,
        target=target,
        state=torch.zeros(2, 3),
        active=torch.ones(2, 2, dtype=torch.bool),
        gamma=0.5,
    )


def test_live_utilities_choose_and_the_copy_values():
    target = torch.tensor([[[30.0, 4.0], [5.0, 60.0]]]).expand(2, -1, -1).clone()
    target[1] = torch.nan
    y = target_of_two_rows(Vdn(), target=target)
    assert y.tolist() == [5.5, 1.0]
    assert not y.requires_grad


def test_the_copy_of_the_mixer_mixes_what_was_chosen():
    target = torch.tensor([[[9.0, 1.2], [0.3, 9.0]]]).expand(2, -1, -1)
    y = target_of_two_rows(fixed, target=target)
    assert y.tolist() == pytest.approx([1.0 + 0.5 * 1.6, 1.0])
