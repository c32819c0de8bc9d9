"""Every claim of the cheap proofs; of the dear ones fewer seeds, and what makes a claim false."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice

import pytest

from rolecall.algorithms.at_grpo import AtGrpo
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.happo import Happo
from rolecall.algorithms.leader_only import LeaderOnly
from rolecall.algorithms.matpo import Matpo
from rolecall.algorithms.mgrpo import MGrpo
from rolecall.algorithms.read import Refiner
from rolecall.core.types import Episode, Turn
from rolecall_lab.proofs import (
    bandits,
    candidates,
    channel_game,
    child_tokens,
    copied_peers,
    diverse_bandit,
    imitated_bandit,
    independent_bandits,
    refined_cooks,
    replays,
    self_play,
    sequential,
    uneven_calls,
)
from rolecall_lab.proofs.all import PROOFS, prove

pytestmark = [pytest.mark.slow, pytest.mark.evidence]


def false_ones(claims) -> list:
    found = list(claims)
    assert found
    json.dumps([asdict(claim) for claim in found])  # as `rolecall prove --json` writes them
    return [claim for claim in found if not claim.ok]


@pytest.mark.parametrize(
    "name",
    [
        "kl",
        "child_tokens",
        "replays",
        "preferences",
        "second_moments",
        "team_value",
        "uneven_calls",
        "candidates",
        "dummy_agent",
        "fidelity",
        "refined_cooks",
    ],
)
def test_every_claim_of_a_cheap_proof_holds(name):
    assert false_ones(prove([name])) == []


def test_each_bandit_is_learned(monkeypatch):
    monkeypatch.setattr(bandits, "NUM_SEEDS", 1)
    assert false_ones(bandits.claims()) == []


def test_a_channel_is_opened_by_a_shared_reward_alone(monkeypatch):
    monkeypatch.setattr(channel_game, "NUM_SEEDS", 1)
    assert false_ones(channel_game.claims()) == []
    monkeypatch.setattr(channel_game, "NUM_STEPS", 10)
    paid = channel_game.paid
    monkeypatch.setattr(channel_game, "paid", lambda a, shared: paid(a, shared=not shared))
    assert [claim.ok for claim in channel_game.claims()] == [False, False]


def test_right_answers_that_differ_are_kept_only_if_that_is_paid(monkeypatch):
    monkeypatch.setattr(diverse_bandit, "NUM_SEEDS", 1)
    assert false_ones(diverse_bandit.claims()) == []
    monkeypatch.setattr(diverse_bandit, "WEIGHT", 0.0)
    assert [claim.ok for claim in diverse_bandit.claims()] == [True, False, True]


def test_an_expert_is_imitated_and_explained(monkeypatch):
    """A quarter of the steps, and then steps too few to get there."""
    monkeypatch.setattr(imitated_bandit, "NUM_STEPS", 500)
    assert false_ones(imitated_bandit.claims()) == []
    monkeypatch.setattr(imitated_bandit, "NUM_STEPS", 20)
    assert len(false_ones(imitated_bandit.claims())) == 3


def test_a_leader_learns_whom_to_copy(monkeypatch):
    monkeypatch.setattr(copied_peers, "NUM_SEEDS", 1)
    assert false_ones(copied_peers.claims()) == []


def test_a_leader_that_is_told_nothing_of_its_candidates_copies_anybody(monkeypatch):
    class Alone(LeaderOnly):
        """Takes each candidate for an answer to a prompt of its own."""

        def credit(self, episodes: list[Episode]) -> None:
            for episode in episodes:
                for turn in episode.turns:
                    turn.state = str(turn.candidate)
            super().credit(episodes)

    monkeypatch.setattr(copied_peers, "NUM_SEEDS", 1)
    monkeypatch.setattr(copied_peers, "NUM_STEPS", 3)
    monkeypatch.setattr(copied_peers, "LeaderOnly", Alone)
    assert not next(copied_peers.claims()).ok


def test_calls_that_are_counted_one_by_one_are_not_the_paper_s(monkeypatch):
    class Counted(MGrpo):
        calls: int | None = None

    monkeypatch.setattr(uneven_calls, "MGrpo", Counted)
    assert [claim.ok for claim in uneven_calls.claims()] == [False, True, True, False, True]


def test_a_copied_row_of_advantages_does_not_reach_all_tokens_of_a_worker(monkeypatch):
    class Copied(Matpo):
        """The planner's row has zeros where tools spoke."""

        def credit(self, episodes: list[Episode]) -> None:
            super().credit(episodes)
            for turn in episodes[0].turns[1:]:
                turn.advantages = turn.advantages * (turn.tokens >= 2)

    monkeypatch.setattr(child_tokens, "Matpo", Copied)
    first, _ = child_tokens.claims()
    assert (first.ok, first.obtained) == (False, "3 of 7")


def test_cooks_whose_judge_refuses_what_adds_most_serve_less(monkeypatch):
    class Reversed(Refiner):
        """Plays what adds little."""

        async def __call__(self, turn: Turn, episode: Episode) -> str:
            return "" if await super().__call__(turn, episode) else "Propose something else."

    monkeypatch.setattr(refined_cooks, "NUM_KITCHENS", 60)
    assert [claim.ok for claim in refined_cooks.claims(Reversed)] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_self_play_becomes_hard_to_exploit(monkeypatch):
    monkeypatch.setattr(self_play, "NUM_SEEDS", 1)
    assert false_ones(self_play.claims()) == []


def test_self_play_that_learns_nothing_stays_as_exploitable_as_uniform_play(monkeypatch):
    monkeypatch.setattr(self_play, "NUM_SEEDS", 1)
    monkeypatch.setattr(self_play, "LR", 0.0)
    assert [claim.ok for claim in self_play.claims()] == [False, False]


def test_ppo_learns_two_bandits_at_once():
    assert false_ones(islice(independent_bandits.claims(), 1)) == []


def test_sequential_updates_beat_simultaneous_ones():
    assert false_ones(sequential.exact_claims(Happo)) == []
    assert false_ones(sequential.sampled_claims(Happo, num_seeds=1)) == []


class Forgetful(Happo):
    """HAPPO without its factor."""

    def after_update(self, policy: str, episodes: list[Episode]) -> None:
        pass


def test_without_its_factor_happo_is_not_sequential():
    of_happo = [c for c in sequential.exact_claims(Forgetful) if "HAPPO" in c.claim]
    assert [claim.ok for claim in of_happo] == [False, False]
    sampled = list(sequential.sampled_claims(Forgetful, num_seeds=1))
    assert [claim.ok for claim in sampled] == [True, False, False]  # clip .2 shows nothing


def test_candidates_of_mixed_nodes_have_no_signal(monkeypatch):
    class Pooled(AtGrpo):
        """Forgets that the turns of a task were asked different things, in different calls."""

        def credit(self, episodes: list[Episode]) -> None:
            for episode in episodes:
                for turn in episode.turns:
                    turn.prompt, turn.state, turn.index = turn.ids[0] * 0, "", 0
                    turn.candidate = None
            super().credit(episodes)
            for episode in episodes:
                for turn in episode.turns:
                    turn.prompt = turn.ids[0] + [0, int(episode.id)]

    assert candidates.per_node(seed=0).ratio > 5
    monkeypatch.setattr(candidates, "AtGrpo", Pooled)
    assert candidates.per_node(seed=0).ratio < 0.5


def test_a_scaled_counterfactual_is_not_the_published_one():
    scaled = Counterfactual(baseline="text", text="0", replays=1, fraction=1.0)
    assert replays.advantages(scaled, (1, 1)) != pytest.approx([-3.0, -3.0], abs=0.1)


def test_proofs_run_one_by_one_and_the_named_ones_only():
    claims = prove(["preferences", "kl"])  # the order is not the caller's
    assert "k2" in next(claims).claim
    assert len(list(claims)) == 5
    assert list(PROOFS)[-1] == "other_play"


def test_an_unknown_proof_is_an_error_that_names_the_known_ones():
    with pytest.raises(ValueError, match="no proof 'xor'; there are kl, child_tokens"):
        prove(["kl", "xor"])
