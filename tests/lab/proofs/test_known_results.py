"""Known results of teams: their exact sums by hand, and claims that fail without the remedy."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from rolecall.algorithms.grpo import Grpo
from rolecall.rollout.opponent_pool import OpponentPool
from rolecall_lab.proofs import (
    hidden_profile,
    other_play,
    own_weights,
    prisoners_dilemma,
    self_play_collapse,
    shared_weights,
)
from rolecall_lab.proofs.all import PROOFS
from rolecall_lab.proofs.prisoners_dilemma import (
    DEFECTOR,
    GAMMA,
    NUM_ROUNDS,
    PAYOFF,
    TIT_FOR_TAT,
    AdvantageAlignment,
    round_payoff,
)
from rolecall_lab.proofs.tabular import Table, agent_turns, first_advantages


def is_ok(claims) -> list[bool]:
    return [claim.ok for claim in claims]


def test_rounds_of_the_dilemma_pay_what_they_do_by_hand():
    weight = sum(GAMMA**step for step in range(NUM_ROUNDS))
    assert round_payoff(DEFECTOR, DEFECTOR) == pytest.approx(-2)
    assert round_payoff(TIT_FOR_TAT, TIT_FOR_TAT) == pytest.approx(-1)
    assert round_payoff(TIT_FOR_TAT, DEFECTOR) == pytest.approx(-2 - 1 / weight)
    assert round_payoff(DEFECTOR, TIT_FOR_TAT) == pytest.approx(-2 + 2 / weight)


def test_advantages_are_aligned_with_what_the_other_has_given():
    team = [Table([[0.5, 0.5]] * 5) for _ in range(2)]
    plain, aligned = (
        prisoners_dilemma.play(team, [PAYOFF, PAYOFF], np.random.default_rng(0)) for _ in range(2)
    )
    options = {"lam": 0.0, "gamma_turn": GAMMA}
    AdvantageAlignment(beta=0.0, **options).credit(plain)
    AdvantageAlignment(beta=0.5, **options).credit(aligned)
    for before, after in zip(plain, aligned, strict=True):
        own, other = (
            first_advantages(agent_turns([before], name)) for name in prisoners_dilemma.AGENTS
        )
        gains = [sum(GAMMA ** (t - k) * own[k] for k in range(t)) for t in range(NUM_ROUNDS)]
        expected = own + 0.5 * np.array(gains) * other
        assert first_advantages(agent_turns([after], "first")) == pytest.approx(expected, abs=1e-5)


def test_in_a_hidden_profile_each_agent_alone_prefers_the_popular_option():
    hidden = hidden_profile.PROFILES[hidden_profile.HIDDEN]
    assert len(hidden) == 30  # 3 popular options, 2 right ones, 5 places of the fourth fact
    for agent in range(4):
        words = np.zeros((len(hidden), 4), dtype=np.int32)
        words[:, agent] = hidden_profile.OWN
        options = hidden_profile.decide(hidden, words)
        assert options[np.arange(len(hidden)), hidden[:, 0]].tolist() == [1.0] * len(hidden)


def test_a_hidden_profile_is_decided_by_all_three_facts_and_tossed_by_two():
    profile = np.array([[0, 1, 1, 2, 1]] * 3, dtype=np.int32)
    words = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 0, 1, 1]], dtype=np.int32)
    assert hidden_profile.decide(profile, words).tolist() == [[0, 1, 0], [0.5, 0.5, 0], [1, 0, 0]]


def test_labels_are_shuffled_anew_in_each_game_but_the_odd_one():
    random = np.random.default_rng(0)
    levers = np.array([0] * 9000 + [other_play.ODD] * 100, dtype=np.int32)
    pulled = other_play.shuffle_labels(levers, random)
    counts = np.bincount(pulled[:9000], minlength=10)
    assert counts[:9] == pytest.approx([1000] * 9, abs=150)
    assert counts[other_play.ODD] == 0
    assert set(pulled[9000:]) == {other_play.ODD}


@pytest.mark.slow
@pytest.mark.evidence
@pytest.mark.parametrize(
    "name",
    ["hidden_profile", "other_play", "prisoners_dilemma", "self_play_collapse", "shared_weights"],
)
def test_every_claim_of_a_known_result_holds(name):
    assert all(is_ok(PROOFS[name]()))


@pytest.mark.slow
@pytest.mark.evidence
def test_a_pool_of_the_newest_weights_alone_does_not_keep_replies(monkeypatch):
    monkeypatch.setattr(self_play_collapse, "NUM_SEEDS", 3)
    monkeypatch.setattr(OpponentPool, "kept_step", lambda pool, step: pool.pool[-1][0])
    assert is_ok(islice(self_play_collapse.claims(), 2)) == [True, False]


@pytest.mark.slow
@pytest.mark.evidence
def test_agents_that_do_not_value_the_other_s_advantage_defect(monkeypatch):
    class Selfish(AdvantageAlignment):
        beta: float = 0.0

    monkeypatch.setattr(prisoners_dilemma, "NUM_SEEDS", 2)
    monkeypatch.setattr(prisoners_dilemma, "AdvantageAlignment", Selfish)
    assert is_ok(prisoners_dilemma.claims()) == [True, False, False, True]


@pytest.mark.slow
@pytest.mark.evidence
def test_without_units_of_its_own_the_verifier_is_captured(monkeypatch):
    monkeypatch.setattr(shared_weights, "NUM_SEEDS", 2)
    monkeypatch.setattr(shared_weights, "DrMas", Grpo)
    assert is_ok(islice(shared_weights.claims(), 3)) == [True, True, False]


@pytest.mark.slow
@pytest.mark.evidence
def test_a_verifier_that_hears_no_first_words_forgets_them(monkeypatch):
    learn = own_weights.learn
    monkeypatch.setattr(own_weights, "NUM_SEEDS", 3)
    monkeypatch.setattr(
        own_weights, "learn", lambda keep_first, seed: learn(keep_first=False, seed=seed)
    )
    assert is_ok(own_weights.claims()) == [True, False]


@pytest.mark.slow
@pytest.mark.evidence
def test_labels_that_are_not_shuffled_leave_strangers_apart(monkeypatch):
    monkeypatch.setattr(other_play, "shuffle_labels", lambda levers, random: levers)
    monkeypatch.setattr(other_play, "NUM_SEEDS", 2)
    monkeypatch.setattr(other_play, "NUM_TEAMS", 3)
    assert is_ok(other_play.claims())[1] is False


@pytest.mark.slow
@pytest.mark.evidence
def test_a_team_that_learns_nothing_stays_with_what_everybody_knows(monkeypatch):
    monkeypatch.setattr(hidden_profile, "NUM_SEEDS", 2)
    monkeypatch.setattr(hidden_profile, "NUM_STEPS", 2)
    monkeypatch.setattr(hidden_profile, "LR", 0.0)
    assert is_ok(hidden_profile.claims()) == [True, False, False]
