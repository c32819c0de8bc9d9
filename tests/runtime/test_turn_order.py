"""Joint steps and rounds of conversations, against the closure of who was told what."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rolecall.algorithms.happo import Happo
from rolecall.algorithms.mappo import Mappo
from rolecall.algorithms.mixing import Vdn
from rolecall.core.types import Episode, Utility
from rolecall.runtime.turn_order import joint_steps, rounds
from rolecall.workflows.graph import Sees, graph
from rolecall.workflows.majority_vote import majority_vote
from rolecall.workflows.mixture import mixture
from tests.algorithms.small import floats
from tests.toy import episode, turn
from tests.workflows.teams import play_team


def names(steps) -> list[list[str]]:
    return [[turn.agent for turn in step] for step in steps]


def debate(values: list[float]) -> Episode:
    """Two debaters, two rounds at once; each is told its own answer first."""
    a0, b0 = (turn(name, path=(k, 0)) for k, name in enumerate("ab"))
    a1, b1 = (turn(name, path=(k + 2, 0)) for k, name in enumerate("ab"))
    a1.parents, b1.parents = (a0.id, b0.id), (b0.id, a0.id)
    turns = [a0, b0, a1, b1]
    for one, value in zip(turns, values, strict=True):
        one.training.values = floats([value] * 2)
        one.training.utility = Utility(q=0.0, v=0.0, gain=0.0, mixed_q=0.4, mixed_v=0.0)
    return episode(0, turns, {"team": 1.0})


def test_debaters_share_a_step_in_every_round_whatever_order_they_are_told_things_in():
    assert names(joint_steps(debate([0.0] * 4))) == [["a", "b"], ["a", "b"]]


def test_mappo_gives_debaters_of_one_round_one_advantage():
    """.7 - .5 + .95 * .3 for the first round, 1 - .7 for the second."""
    said = debate([0.5, 0.5, 0.7, 0.7])
    Mappo(whiten=False).credit([said])
    found = [float(t.advantages[0]) for t in said.turns]
    assert found == pytest.approx([0.485, 0.485, 0.3, 0.3], abs=1e-6)


def test_vdn_has_one_target_for_each_round_of_a_debate():
    """y = gamma ((1 - lam) .4 + lam 1), and 1."""
    assert Vdn(lam=0.8).targets(debate([0.0] * 4)) == pytest.approx([0.2 * 0.4 + 0.8, 1.0])


SAYS = {name: [r"\boxed{7}"] * 3 for name in ("a", "b", "c")}


@pytest.mark.parametrize("options", [{}, {"contain_self": False}, {"max_others": 1}])
def test_rounds_of_a_vote_are_joint_steps(model_folder, options):
    roles = dict.fromkeys(SAYS, "debater")
    options = {"rounds": 3, "earns": "outcome", **options}
    played = play_team(model_folder, majority_vote, SAYS, roles=roles, options=options)
    assert names(joint_steps(played)) == [["a", "b", "c"]] * 3


def test_layers_of_a_mixture_are_joint_steps(model_folder):
    says = {**SAYS, "aggregator": [r"\boxed{7}"]}
    roles = {**dict.fromkeys(SAYS, "proposer"), "aggregator": "aggregator"}
    played = play_team(model_folder, mixture, says, roles=roles, options={"layers": 3})
    assert names(joint_steps(played)) == [["a", "b", "c"]] * 3 + [["aggregator"]]


def test_agents_of_a_graph_that_speak_at_once_share_a_step_though_they_read_others(model_folder):
    sees = {"a": {}, "b": {}, "c": {"now": ["a"]}, "d": {"now": ["a", "b"]}, "e": {"now": ["d"]}}
    says = {name: ["x"] for name in sees}
    options = {"sees": {name: Sees(**seen) for name, seen in sees.items()}, "answer": "e"}
    played = play_team(model_folder, graph, says, options=options)
    assert names(joint_steps(played)) == [["a", "b"], ["c", "d"], ["e"]]


def test_two_tool_loops_at_once_run_side_by_side():
    """Each agent's turns stand together in the episode, and each is told its own one before."""
    turns = []
    for k, name in enumerate("ab"):
        for place in range(2):
            one = turn(name, path=(k, place))
            one.parents = (turns[-1].id,) if place else ()
            one.tools.calls = [] if place else [{"name": "calculator"}]
            turns.append(one)
    played = episode(0, turns, {})
    assert names(joint_steps(played)) == [["a", "b"], ["a", "b"]]
    assert names(rounds(played)) == [["a", "a", "b", "b"]], "one answer each"


def drawn(seed: int) -> Episode:
    """Turns of four agents, each told some of those before it; some were not played."""
    draw = random.Random(seed)
    turns = []
    for k in range(draw.randint(1, 12)):
        one = turn(draw.choice("abcd"), path=(k, 0))
        told = draw.sample(turns, draw.randint(0, min(3, len(turns))))
        one.parents, one.chosen = tuple(t.id for t in told), draw.random() < 0.8
        turns.append(one)
    return episode(0, turns, {})


def closure(played: Episode, *, own: bool) -> np.ndarray:
    """[i, j]: whether turn i may know of turn j; `own`: also what its agent said before."""
    turns = played.turns
    place = {t.id: k for k, t in enumerate(turns)}
    knows = np.zeros((len(turns), len(turns)), dtype=bool)
    for i, one in enumerate(turns):
        for name in one.parents:
            knows[i, place[name]] = True
        for j in range(i if own else 0):
            both = one.chosen and turns[j].chosen
            knows[i, j] |= both and turns[j].agent == one.agent
    for k in range(len(turns)):
        knows |= knows[:, k : k + 1] & knows[k : k + 1, :]
    return knows


@pytest.mark.parametrize("seed", range(40))
def test_a_turn_is_in_the_first_step_after_all_that_it_may_know(seed):
    played = drawn(seed)
    knows = closure(played, own=True)
    step_of = {t.id: n for n, step in enumerate(joint_steps(played)) for t in step}
    assert step_of.keys() == {t.id for t in played.turns if t.chosen}
    for i, one in enumerate(played.turns):
        if one.chosen:
            known = [t for j, t in enumerate(played.turns) if knows[i, j] and t.chosen]
            assert step_of[one.id] == 1 + max((step_of[t.id] for t in known), default=-1)


@pytest.mark.parametrize("seed", range(40))
def test_an_agent_speaks_once_in_a_round_and_no_turn_is_in_one_before_what_it_knows(seed):
    played = drawn(seed)
    knows = closure(played, own=True)
    found = rounds(played)
    round_of = {t.id: n for n, step in enumerate(found) for t in step}
    assert all(len({t.agent for t in step}) == len(step) for step in found)
    for i, one in enumerate(played.turns):
        for j, other in enumerate(played.turns):
            if one.chosen and other.chosen and knows[i, j]:
                assert round_of[one.id] >= round_of[other.id] + (one.agent == other.agent)


def test_the_order_in_which_tasks_were_started_is_not_the_order_of_turns():
    """The second turn of the first task waits for the second task's."""
    first, answer = turn("a", path=(0, 0)), turn("c", path=(0, 1))
    beside = turn("b", path=(1, 0))
    answer.parents = (first.id, beside.id)
    beside.parents = (first.id,)
    assert names(joint_steps(episode(0, [first, answer, beside], {}))) == [["a"], ["b"], ["c"]]


def test_happo_finds_the_round_of_an_agent_that_was_absent_before():
    """a, c, a, b, c: the first turn of b is in the second round, as its updated neighbour is."""
    turns = []
    for k, name in enumerate("acabc"):
        one = turn(name, path=(k,), tokens=[7], policy=name)
        one.index = sum(t.agent == name for t in turns)
        one.parents = (turns[-1].id,) if turns else ()
        one.training.values = one.training.prox_logprobs = floats([0.0])
        one.training.new_logprobs = floats([0.1 * (k + 1)])
        turns.append(one)
    said = episode(0, turns, {"team": 1.0})
    algorithm = Happo(clamp=False)
    algorithm.credit([said])
    algorithm.after_update("a", [said])
    expected = [0.0, 0.1, 0.0, 0.3, 0.3]
    assert [t.weight for t in turns] == pytest.approx(np.exp(expected), rel=1e-6)
