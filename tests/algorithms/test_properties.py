"""Group-relative credit on drawn teams: uneven attempts, calls and lengths, any finite scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.core.types import Episode
from tests.algorithms.small import algorithm
from tests.toy import episode, turn

CANDIDATES = ["at_grpo", "leader_only"]  # they compare what turns earned, not outcomes
DIVIDED = [
    "grpo", "drmas", "gspo", "matpo", "agentrl", "dapo", "mgrpo", "reinforce_pp_baseline",
    "counterfactual", "at_grpo",
]  # fmt: skip
IN_REWARD_UNITS = ["rloo", "dr_grpo", "gigpo", "leader_only"]
RELATIVE = [*DIVIDED, *IN_REWARD_UNITS]
LIMITLESS = {"kl": 0.0, "reward_clip": 1e6}
drawn = settings(max_examples=12, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True)
class Attempt:
    """What one attempt at a task was: who spoke how long, and what was earned."""

    task: str
    spoken: tuple[tuple[str, int], ...]  # agent and number of tokens, turn by turn
    outcome: float
    own: tuple[float, ...]  # of each turn


@st.composite
def attempts(draw, scores: st.SearchStrategy[float], own: st.SearchStrategy[float]):
    """One to five attempts at each of one or two tasks, by two agents who speak 1 to 4 times."""
    found = []
    for task in ("x", "y")[: draw(st.integers(1, 2))]:
        for _ in range(draw(st.integers(1, 5))):
            said = st.tuples(st.sampled_from(["solver", "verifier"]), st.integers(1, 3))
            spoken = draw(st.lists(said, min_size=1, max_size=4))
            earned = tuple(draw(own) for _ in spoken)
            found.append(Attempt(task, tuple(spoken), draw(scores), earned))
    return found


def played(tried: list[Attempt], *, of_turns: bool, factor: float = 1.0, shift: float = 0.0):
    """As episodes; `of_turns`: an attempt's score is earned by each of its turns."""
    made = []
    for number, attempt in enumerate(tried):
        name, spoken = f"{attempt.task}{number}", []
        score = factor * attempt.outcome + shift
        for place, (agent, length) in enumerate(attempt.spoken):
            own = factor * attempt.own[place] + (score if of_turns else 0.0)
            one = turn(
                agent, task=attempt.task, episode=name, path=(place,), tokens=[7] * length,
                rewards={"own": own}, policy=agent,
            )  # fmt: skip
            one.index = sum(t.agent == agent for t in spoken)
            one.training.ref_logprobs = one.logprobs
            spoken.append(one)
        outcome = {} if of_turns else {"team": score}
        made.append(episode(number, spoken, outcome, task=attempt.task))
    return made


def credited(name: str, episodes: list[Episode], **options) -> dict[str, np.ndarray]:
    algorithm(name, **(options or LIMITLESS)).credit(episodes)
    return {t.id: t.advantages for e in episodes for t in e.turns}


def agree(found: dict, there: dict, *, factor: float = 1.0, within: float = 1e-6) -> bool:
    return all(found[i] * factor == pytest.approx(there[i], rel=within, abs=1e-9) for i in found)


whole = st.integers(-4, 4).map(float)
finite = st.floats(-1e30, 1e30, allow_nan=False)
nothing = st.just(0.0)


@pytest.mark.parametrize("name", RELATIVE)
@given(tried=attempts(finite, finite))
@drawn
def test_finite_scores_give_finite_advantages(name, tried):
    found = credited(name, played(tried, of_turns=name in CANDIDATES), kl=0.0)
    assert all(np.isfinite(advantages).all() for advantages in found.values())


@pytest.mark.parametrize("name", RELATIVE)
@given(tried=attempts(finite, nothing), score=finite | st.sampled_from([0.9, 0.99, 0.1, 0.7]))
@drawn
def test_constant_scores_give_exactly_nothing(name, tried, score):
    """However often and long agents spoke."""
    same = [Attempt(a.task, a.spoken, score, a.own) for a in tried]
    found = credited(name, played(same, of_turns=name in CANDIDATES))
    assert all((advantages == 0.0).all() for advantages in found.values())


@pytest.mark.parametrize("name", [n for n in RELATIVE if n not in ("drmas", *CANDIDATES)])
@given(tried=attempts(finite, nothing))
@drawn
def test_an_attempt_without_siblings_gets_exactly_nothing(name, tried):
    alone = [a for a in tried if a.task == "x"][:1] + [a for a in tried if a.task == "y"][:1]
    found = credited(name, played(alone, of_turns=False))
    assert all((advantages == 0.0).all() for advantages in found.values())


@pytest.mark.parametrize("name", RELATIVE)
@given(tried=attempts(whole, whole), order=st.randoms(use_true_random=False))
@drawn
def test_the_order_of_attempts_changes_nothing(name, tried, order):
    episodes = played(tried, of_turns=name in CANDIDATES)
    shuffled = played(tried, of_turns=name in CANDIDATES)
    order.shuffle(shuffled)
    assert agree(credited(name, episodes), credited(name, shuffled))


@pytest.mark.parametrize("name", RELATIVE)
@given(tried=attempts(whole, whole), shift=st.integers(-50, 50))
@drawn
def test_a_number_added_to_all_scores_changes_nothing(name, tried, shift):
    of_turns = name in CANDIDATES
    moved = played(tried, of_turns=of_turns, shift=float(shift))
    assert agree(credited(name, played(tried, of_turns=of_turns)), credited(name, moved))


@pytest.mark.parametrize("name", DIVIDED)
@given(tried=attempts(whole, nothing), power=st.integers(1, 10))
@drawn
def test_a_factor_of_all_scores_changes_nothing_where_a_spread_divides(name, tried, power):
    of_turns = name in CANDIDATES
    scaled = played(tried, of_turns=of_turns, factor=2.0**power)
    found = credited(name, played(tried, of_turns=of_turns))
    assert agree(found, credited(name, scaled), within=1e-5)


@pytest.mark.parametrize("name", IN_REWARD_UNITS)
@given(tried=attempts(whole, whole), power=st.integers(1, 10))
@drawn
def test_a_factor_of_all_scores_is_one_of_advantages_in_the_rewards_unit(name, tried, power):
    of_turns = name in CANDIDATES
    scaled = played(tried, of_turns=of_turns, factor=2.0**power)
    found = credited(name, played(tried, of_turns=of_turns))
    assert agree(found, credited(name, scaled), factor=2.0**power)
