"""Games of PettingZoo are played by a team, and games of ours pass PettingZoo's checks."""

from __future__ import annotations

import itertools
import warnings
from typing import ClassVar

import pytest
from gymnasium.spaces import Discrete
from pettingzoo import AECEnv
from pettingzoo.test import api_test, seed_test

from rolecall.environments.games.kuhn import CARDS
from rolecall.environments.pettingzoo.environment import PettingZooEnvironment
from rolecall.environments.pettingzoo.export import kuhn, observation_text
from rolecall.workflows.self_play import self_play
from tests.environments.contexts import play_in, said_by
from tests.workflows.teams import shown

pytestmark = pytest.mark.slow

KUHN = {
    "make": "rolecall.environments.pettingzoo.export:kuhn",
    "actions": ["check", "bet", "call", "fold"],
    "show": "rolecall.environments.pettingzoo.export:observation_text",
}


class Leave(AECEnv):
    """Three players, who stay or leave in turn; who leaves as number n earns n and is out.

    Nobody may leave at first. The mask stands in `infos`, as some games of others have it.
    """

    metadata: ClassVar = {"name": "leave_v0"}

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["player_0", "player_1", "player_2"]
        self.action_spaces = dict.fromkeys(self.possible_agents, Discrete(2))

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {name: {"action_mask": [1, 0]} for name in self.agents}
        self.agent_selection, self.num_left = self.agents[0], 0

    def observe(self, agent):
        return f"{self.num_left} have left"

    def step(self, action):
        name = self.agent_selection
        if self.terminations[name]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        following = self.agents[(self.agents.index(name) + 1) % len(self.agents)]
        self.infos[name] = {"action_mask": [1, 1]}
        if action == 1:
            self.num_left += 1
            self.rewards[name] = float(self.num_left)
            self.terminations[name] = True
        self.agent_selection = following
        self._deads_step_first()


def play_game(folder, says: dict[str, list[str]], *, deal: int = 3, **options):
    environment = PettingZooEnvironment(**KUHN | options)
    team = said_by(folder, **says)
    for member in team.values():
        member.role = "player"
    return play_in(environment, environment.tasks("test")[deal], self_play, team)


def test_agents_take_the_seats_and_each_sees_its_own_view(model_folder):
    episode = play_game(model_folder, {"ann": ["[check]", "ok [CALL]"], "ben": ["I [bet]"]})
    first, second, third = episode.turns
    assert [turn.agent for turn in episode.turns] == ["ann", "ben", "ann"]
    cards = [next(c for c in CARDS if f"hold the {c}" in shown(t)) for t in (first, second)]
    assert cards[0] != cards[1]
    assert f"hold the {cards[1]}" not in shown(third)
    assert "You may: [call], [fold]" in shown(third)  # the game's own mask
    won = 2.0 if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -2.0
    assert (episode.scores["ann"], episode.scores["ben"]) == (won, -won)
    assert episode.metrics["count/illegal_moves"] == 0


def test_an_illegal_action_is_told_and_counted_and_a_second_one_ends_the_game(model_folder):
    warned = play_game(model_folder, {"ann": ["[call]", "[check]"], "ben": ["[check]"]})
    assert [turn.valid for turn in warned.turns] == [False, True, True]
    assert "not one legal action" in shown(warned.turns[1])
    assert warned.metrics["count/illegal_moves"] == 1
    lost = play_game(model_folder, {"ann": ["raise", "[raise]"], "ben": []}, illegal_reward=-3.0)
    assert (lost.scores["ann"], lost.scores["ben"]) == (-3.0, 0.0)
    assert lost.metrics["count/illegal_moves"] == 2


def test_a_game_that_takes_too_long_is_cut_and_counted(model_folder):
    episode = play_game(model_folder, {"ann": ["[check]"], "ben": []}, max_moves=1)
    assert episode.scores["ann"] == episode.scores["ben"] == 0.0
    assert episode.metrics["count/games_cut"] == 1


def test_a_finished_game_is_not_counted_as_cut(model_folder):
    episode = play_game(model_folder, {"ann": ["[bet]"], "ben": ["[fold]"]}, max_moves=2)
    assert episode.scores["ann"] == 1.0
    assert "count/games_cut" not in episode.metrics


def test_players_who_are_out_are_not_asked_again_and_keep_what_they_earned(model_folder):
    episode = play_game(
        model_folder,
        {"ann": ["[stay]", "[leave]"], "ben": ["[stay]", "[stay]", "[leave]"],
         "eva": ["[leave]", "[stay]", "[leave]"]},
        make=f"{__file__}:Leave", actions=["stay", "leave"], show=None,
    )  # fmt: skip
    said = [turn.agent for turn in episode.turns]
    # eva may not leave at first: she is warned
    assert said == ["ann", "ben", "eva", "eva", "ann", "ben", "eva", "ben"]
    assert "2 have left" in shown(episode.turns[-1])
    won = {name: episode.scores[name] for name in ("ann", "ben", "eva")}
    assert won == {"ann": 1.0, "eva": 2.0, "ben": 3.0}


def test_the_same_task_deals_the_same_cards_and_others_deal_others():
    environment = PettingZooEnvironment(**KUHN)
    views = []
    for task in environment.tasks("train")[:30]:
        once, again = (environment.open(task, seed=seed).aec.view(0) for seed in (0, 1))
        assert once == again
        views.append(once)
    assert len(set(views)) == len(CARDS)


@pytest.mark.parametrize("actions", [["check"], ["a", "b", "c", "a"]])
def test_names_that_do_not_fit_the_actions_are_an_error(actions):
    with pytest.raises(ValueError, match="4 different names"):
        PettingZooEnvironment(KUHN["make"], actions=actions)


def test_options_that_the_game_does_not_have_are_an_error():
    with pytest.raises(ValueError, match=r"cannot be made .*cards"):
        PettingZooEnvironment(**KUHN, options={"cards": 4})


def test_our_poker_passes_the_checks_of_pettingzoo():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Observation space for each agent")  # of masks
        warnings.filterwarnings("ignore", "Observation is not a NumPy array")  # but a dict
        warnings.filterwarnings("ignore", "Environment has not defined a render")
        api_test(kuhn(), num_cycles=200)
        seed_test(kuhn)


@pytest.mark.parametrize(
    ("moves", "higher", "lower"),
    [("check check", 1, -1), ("bet call", 2, -2), ("bet fold", 1, 1), ("check bet fold", -1, -1)],
)
def test_our_poker_pays_what_its_rules_say(moves, higher, lower):
    env = kuhn()
    paid = set()
    for seed in range(12):
        env.reset(seed=seed)
        cards = [
            next(c for c in CARDS if f"hold the {c}" in observation_text(env.observe(player)))
            for player in env.possible_agents
        ]
        for move in moves.split():
            assert not any(env.terminations.values())
            env.step(env.actions.index(move))
        assert all(env.terminations.values())
        first_wins = CARDS.index(cards[0]) > CARDS.index(cards[1])
        assert env.rewards["player_0"] == (higher if first_wins else lower)
        assert env.rewards["player_1"] == -env.rewards["player_0"]
        paid.add(first_wins)
    assert paid == {True, False}


def test_an_illegal_action_gives_up_our_poker():
    env = kuhn()
    for player, other in itertools.permutations(env.possible_agents):
        env.reset(seed=0)
        if player == "player_1":
            env.step(env.actions.index("check"))
        env.step(env.actions.index("call"))
        assert (env.rewards[player], env.rewards[other]) == (-1.0, 1.0)
