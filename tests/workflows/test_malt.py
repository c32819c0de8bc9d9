"""MALT: a tree of drafts, critiques and refinements, whose values go back to every turn."""

from __future__ import annotations

import pytest

from rolecall.algorithms.dpo import Dpo
from rolecall.algorithms.sft import Sft
from rolecall.config.data_set_export import CollectConfig
from rolecall.config.schema import Config
from rolecall.core.types import Episode
from rolecall.demonstrations.data_set import make_rows
from rolecall.setup.plan import validate
from rolecall.workflows.malt import malt
from tests.toy import relay_config
from tests.workflows.teams import play_team, play_test_tasks, turns_of

# ALGORITHMS 2.21: rows are critiques, entries their refinements.
G1, G2, G3 = ("101", "001", "111"), ("000", "100", "001"), ("110", "011", "000")
RIGHT, WRONG = "\\boxed{7}", "\\boxed{8}"
ROLES = ("generator", "verifier", "refiner")


def played(folder, *, options: dict | None = None) -> Episode:
    refined = [RIGHT if entry == "1" else WRONG for g in (G1, G2, G3) for row in g for entry in row]
    says = {
        "generator": [f"g{i} {RIGHT}" for i in range(3)],
        "verifier": [f"critique {i}" for i in range(9)],
        "refiner": refined,
    }
    return play_team(folder, malt, says, options=options)


def worth(episode: Episode, agent: str) -> list[float]:
    return [turn.payments["value"] for turn in turns_of(episode, agent)]


def credited(episode: Episode, agent: str, algorithm):
    """The turns of one agent after credit; no outcome is added to what a turn is worth."""
    for turn in episode.turns:
        turn.trained = True
    algorithm.credit([episode])
    return turns_of(episode, agent)


def test_a_turn_is_worth_the_mean_of_what_came_of_it(model_folder):
    episode = played(model_folder)
    assert worth(episode, "refiner") == [float(x) for g in (G1, G2, G3) for row in g for x in row]
    third = 1 / 3
    critiques = [2 * third, third, 1, 0, third, third, 2 * third, 2 * third, 0]
    assert worth(episode, "verifier") == pytest.approx(critiques)
    assert worth(episode, "generator") == pytest.approx([2 / 3, 2 / 9, 4 / 9])
    assert all(turn.chosen for turn in episode.turns)
    assert len(episode.turns) == 3 + 9 + 27


def test_with_theta_a_turn_is_paid_its_label(model_folder):
    episode = played(model_folder, options={"theta": 0.5})
    assert worth(episode, "generator") == [1.0, 0.0, 0.0]
    assert worth(episode, "verifier") == [1, 0, 1, 0, 0, 0, 1, 1, 0]
    values = [turn.info["value"] for turn in turns_of(episode, "generator")]
    assert values == pytest.approx([2 / 3, 2 / 9, 4 / 9])


def test_a_value_of_theta_is_label_0(model_folder):
    says = {"generator": [RIGHT] * 2, "verifier": ["c"] * 4, "refiner": [RIGHT, WRONG] * 4}
    episode = play_team(model_folder, malt, says, options={"theta": 0.5, "candidates": 2})
    assert worth(episode, "verifier") == [0.0] * 4


def test_what_is_worth_more_is_imitated(model_folder):
    episode = played(model_folder, options={"theta": 0.5})
    for agent, labels in (("generator", [1, 0, 0]), ("verifier", [1, 0, 1, 0, 0, 0, 1, 1, 0])):
        turns = credited(episode, agent, Sft())
        assert [float(turn.advantages[0]) for turn in turns] == labels


def test_pairs_are_siblings_of_one_parent(model_folder):
    """Two of the verifier under g1, none under g2, two under g3; none across parents."""
    episode = played(model_folder, options={"theta": 0.5})
    algorithm = Dpo(pair_up="all")
    turns = credited(episode, "verifier", algorithm)
    place = {turn.id: number for number, turn in enumerate(turns)}
    pairs = sorted((place[a.id], place[b.id]) for a, b in algorithm.pairs(turns))
    assert pairs == [(0, 1), (2, 1), (6, 8), (7, 8)]
    rows = make_rows(
        [episode],
        CollectConfig(pairs=True, agents=["verifier"]),
        tokenizers=dict.fromkeys(ROLES, "print"),
    )
    assert len(rows) == 2  # the best with the worst of each parent


def test_refinements_vote_on_the_answer(model_folder):
    assert played(model_folder).answer == WRONG  # 12 of 27 are right
    says = {"generator": [WRONG] * 2, "verifier": ["c"] * 4, "refiner": [RIGHT] * 5 + [WRONG] * 3}
    assert play_team(model_folder, malt, says, options={"candidates": 2}).answer == RIGHT


def team(folder, algorithm: str = "sft"):
    sampling = {"max_tokens": 8}
    config = relay_config(folder)
    config["team"] = {name: {"policy": "a", "sampling": sampling} for name in ROLES}
    config["policies"] = {"a": config["policies"]["a"]}
    config["workflow"] = {"name": "malt", "candidates": 2}
    config["environment"] = {"name": "math", "kinds": ["equation"]}
    config["rollout"] = {"groups": 1, "group_size": 1}
    config["evaluation"] = {"tasks": 1, "samples": 1}
    return config | {"algorithm": algorithm}


def test_an_evaluation_draws_chains_of_three(model_folder, tmp_path):
    [episode] = play_test_tasks(team(model_folder), tmp_path)
    assert [len(turns_of(episode, name)) for name in ROLES] == [3, 3, 3]


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_it_trains_with_imitation_and_with_preferences(model_folder, algorithm):
    config = team(model_folder, algorithm)
    if algorithm == "dpo":
        config["policies"]["a"]["reference"] = "initial"
    validate(Config.model_validate(config))
