"""Every advantage can be computed again from the credit that is written down, to the bit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rolecall.core.credit import Compared, dump_credit, load_credit
from rolecall.core.types import CoachNote
from rolecall.explain.turns import explain_turn, is_reproduced
from rolecall.storage.episode_io import from_json, read_parquet, to_json, write_parquet
from tests.algorithms.small import NAMES, algorithm, team_step
from tests.toy import episode, turn

OPTIONS = [
    ("grpo", {"std": "agent"}),
    ("grpo", {"mean": "global", "std": "global"}),
    ("grpo", {"mean": "task", "std": "none", "count": "turn"}),
    ("drmas", {"kl": 0.1, "kl_in": "reward"}),
    ("drmas", {"mask_truncated": True}),
    ("rloo", {"std": "agent"}),
    ("pass_at_k", {"k": 2, "right": 0.5}),
    ("gigpo", {"std": "task"}),
    ("mgrpo", {"calls": None}),
    ("reinforce_pp", {"gamma": 0.9, "reward_clip": 0.3}),
    ("ppo", {"whiten": False, "lam": 0.5, "gamma": 0.9, "gamma_turn": 0.8}),
    ("ppo", {"kl": 0.1, "kl_in": "reward"}),
    ("mappo", {"whiten": False, "gamma": 0.9}),
    ("marft", {"round_robin": 1}),
    ("vdn", {"eta": 0.3}),
    ("counterfactual", {"scale": False}),
    ("dpo", {"pair_up": "all"}),
    ("sft", {"threshold": 0.5, "best_of": 2}),
]
CASES = [*((name, {}) for name in NAMES), *OPTIONS]


def credited(name: str, options: dict) -> list:
    made = algorithm(name, **options)
    assert options.items() <= {key: getattr(made, key) for key in options}.items()
    episodes = team_step()
    for number, one in enumerate(t for e in episodes for t in e.turns):
        one.state = "same" if number % 3 else ""
        one.training.team_values = None
        if number % 2:
            one.training.replayed = 0.1 * number
        if number % 5 == 0:
            one.finish = "length"
    made.credit(episodes)
    return episodes


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_written_credit_comes_to_the_same_bits(name, options, tmp_path):
    episodes = credited(name, options)
    turns = [one for each in episodes for one in each.turns]
    has_one_candidate = name.endswith("_value")
    assert has_one_candidate != any(np.any(one.advantages) for one in turns)
    write_parquet(tmp_path / "step.parquet", episodes, step=1)
    read = read_parquet(tmp_path / "step.parquet")
    again = [one for each in read for one in each.turns]
    assert [one.training.credit for one in again] == [one.training.credit for one in turns]
    for one, before in zip(again, turns, strict=True):
        assert np.array_equal(one.advantages, before.advantages) or one.advantages is None
        assert is_reproduced(one), (one.id, one.training.credit)
    journal = [from_json(to_json(each)) for each in episodes]
    assert all(is_reproduced(one) for each in journal for one in each.turns)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_every_turn_is_explained(name, options):
    """Each term has a sentence, and a turn without one has a note."""
    episodes = credited(name, options)
    for each in episodes:
        for one in each.turns:
            explanation = explain_turn(one, each, episodes)
            assert explanation.note or explanation.reasons
            assert len(explanation.reasons) == len(one.training.credit or ())
            assert all(reason.sentence.strip() for reason in explanation.reasons)


def test_credit_is_given_anew_each_time():
    episodes = credited("grpo", {})
    first = [one.training.credit for each in episodes for one in each.turns]
    algorithm("grpo").credit(episodes)
    assert [one.training.credit for each in episodes for one in each.turns] == first


def test_the_arithmetic_of_a_turn_in_words():
    """The outcome and a penalty of the verifier among four attempts."""
    made = []
    for number, (outcome, own) in enumerate([(1, -0.1), (0, 0), (1, 0), (0, 0)]):
        one = turn("verifier", episode=str(number), tokens=[7, 8])
        one.rewards = {"penalty": own} if own else {}
        made.append(episode(number, [one], {"team": outcome}))
    algorithm("drmas").credit(made)
    explanation = explain_turn(made[0].turns[0], made[0], made)
    assert explanation.reasons[0].sentence == (
        "outcome 1 and own -0.1 make 0.9; verifier's 4 turns of this task have mean 0.475 and "
        "spread 0.55: +0.773"
    )
    assert explanation.reasons[0].formula == "(0.9 - 0.475) / (0.55 + 1e-06) = +0.773"
    assert [sample.score for sample in explanation.samples] == [0.9, 0.0, 1.0, 0.0]
    assert explanation.advantage == pytest.approx(0.773, abs=5e-4)


def test_a_coachs_score_is_told_with_what_bounded_it():
    made = credited("grpo", {})
    first, second = (each.turns[0] for each in made[:2])
    note = CoachNote(3.0, "Fine.", {}, uncapped=8.0, cap="score 0 is below 0.5")
    first.coach.note = CoachNote(7.0, "Good.", {}, hindsight=note)
    told = explain_turn(first, made[0], made).coach
    assert told == "3 of 10 (capped from 8: score 0 is below 0.5)"
    assert explain_turn(second, made[1], made).coach == ""


def test_an_advantage_written_by_hand_is_said_to_be():
    made = credited("grpo", {})
    one = made[0].turns[0]
    one.advantages = one.advantages + 1
    assert not is_reproduced(one)
    assert "without `give_credit`" in explain_turn(one, made[0], made).note


def test_the_record_of_a_part_leaves_out_what_is_usual():
    term = Compared(1.0, 0.5)
    assert dump_credit((term,)) == [{"kind": "Compared", "score": 1.0, "mean": 0.5}]
    assert load_credit(json.loads(json.dumps(dump_credit((term,))))) == (term,)
