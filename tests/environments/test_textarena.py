"""Games of textarena are played to known ends, and a team is trained on them."""

from __future__ import annotations

import asyncio
import sys

import pytest

from rolecall.core.errors import RunEndingError
from rolecall.environments.textarena import TextArenaEnvironment
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.workflows.self_play import self_play
from tests.environments.contexts import play_in, said_by
from tests.rollout.test_rollout import run
from tests.toy import command
from tests.workflows.teams import shown

pytest.importorskip("textarena", reason="needs the extra textarena")
pytestmark = pytest.mark.slow


def play_game(folder, says: dict[str, list[str]], make: str = "TicTacToe-v0", *, deal=3, **options):
    environment = TextArenaEnvironment(make, **options)
    team = said_by(folder, **says)
    for member in team.values():
        member.role = "player"
    try:
        return play_in(environment, environment.tasks("test")[deal], self_play, team)
    finally:
        asyncio.run(environment.close())


def cells(text: str) -> list[str]:
    return [f"I take [{cell}]" for cell in text]


@pytest.mark.parametrize("make", ["TicTacToe-v0", "TicTacToe-v0-raw", "TicTacToe-v0-train"])
@pytest.mark.parametrize(
    ("first", "second", "won"),
    [("012", "34", 1.0), ("018", "345", -1.0), ("02378", "1456", 0.0)],
)
def test_each_agent_is_paid_its_own_reward(model_folder, make, first, second, won):
    says = {"ann": cells(first), "ben": cells(second)}
    episode = play_game(model_folder, says, make)
    scores = {name: episode.scores[name] for name in ("ann", "ben")}
    assert scores == {"ann": won, "ben": -won}
    assert len(episode.turns) == len(first) + len(second)
    assert [turn.seat for turn in episode.turns[:3]] == ["0", "1", "0"]
    assert episode.metrics["count/illegal_moves"] == 0


@pytest.mark.parametrize("make", ["TicTacToe-v0", "TicTacToe-v0-raw"])
def test_a_seat_sees_all_that_it_was_shown_and_not_the_prompt_of_the_other(model_folder, make):
    episode = play_game(model_folder, {"ann": cells("012"), "ben": cells("34")}, make)
    third = shown(episode.turns[4])
    assert "You are Player 0 in Tic Tac Toe" in third
    assert "You are Player 1 in Tic Tac Toe" not in third
    moves = [f"[Player {player}] I take [{cell}]" for player, cell in ((0, 0), (1, 3), (0, 1))]
    assert [move in third for move in moves] == [True] * 3
    assert third.count("[GAME] Current Board:") == 5
    assert third.index(moves[0]) < third.index(moves[1]) < third.index(moves[2])


def test_an_illegal_move_is_answered_and_a_second_in_a_row_loses(model_folder):
    again = play_game(model_folder, {"ann": cells("012"), "ben": cells("034")})
    assert "cell 0 is already occupied" in shown(again.turns[2])
    assert [turn.agent for turn in again.turns] == ["ann", "ben", "ben", "ann", "ben", "ann"]
    assert (again.scores["ann"], again.metrics["count/illegal_moves"]) == (1.0, 1)
    lost = play_game(model_folder, {"ann": cells("0"), "ben": ["Hm.", "Hm."]})
    assert (lost.scores["ben"], lost.metrics["count/illegal_moves"]) == (-1.0, 2)


def test_a_game_that_takes_too_long_is_cut_and_pays_nothing(model_folder):
    episode = play_game(model_folder, {"ann": cells("01"), "ben": cells("3")}, max_moves=3)
    assert episode.scores["ann"] == episode.scores["ben"] == 0.0
    assert episode.metrics["count/games_cut"] == 1


def test_three_agents_play_a_game_for_three(model_folder):
    says = {"ann": cells("00"), "ben": ["Hm.", "Hm."], "eva": ["Hm.", "Hm."]}
    episode = play_game(model_folder, says, "ThreePlayerTicTacToe-v0", max_moves=4)
    assert {turn.agent for turn in episode.turns} >= {"ann", "ben"}


def guess_number(model_folder, guesses: list[int], deal: int):
    says = {"ann": [f"[{guess}]" for guess in guesses]}
    options = {"max_turns": 30}
    return play_game(model_folder, says, "GuessTheNumber-v0", deal=deal, options=options)


def test_a_seed_says_which_number_is_to_be_guessed(model_folder):
    numbers = []
    for deal in (0, 1, 2, 0):
        episode = guess_number(model_folder, list(range(1, 21)), deal)
        assert episode.scores["team"] == 1.0
        numbers.append(len(episode.turns))
        hints = shown(episode.turns[-1]).count("The target number is higher.")
        assert hints == numbers[-1] - 1
    assert numbers[0] == numbers[3]
    assert len(set(numbers)) > 1


@pytest.mark.parametrize(
    ("make", "line"),
    [
        ("TicTacToe", "make: textarena has no 'TicTacToe'; nearest: TicTacToe-v0"),
        ("KuhnPoker-v9", "make: textarena has no 'KuhnPoker-v9'; nearest: KuhnPoker-v0"),
    ],
)
def test_an_unknown_game_ends_the_run_with_near_names(make, line):
    environment = TextArenaEnvironment(make)
    with pytest.raises(RunEndingError, match=line):
        asyncio.run(environment.check())


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads the file of the game")
def test_a_game_that_is_written_for_a_newer_python_ends_the_run():
    environment = TextArenaEnvironment("Chess-v0")
    line = r"SyntaxError: .*; Python 3\.11 cannot read it, name a newer one"
    with pytest.raises(RunEndingError, match=line):
        asyncio.run(environment.check())


@pytest.mark.parametrize(("make", "names"), [("TicTacToe-v0", "abc"), ("ThreePlayerIPD-v0", "ab")])
def test_a_game_that_is_not_for_so_many_agents_ends_the_run(model_folder, make, names):
    environment = TextArenaEnvironment(make)
    team = said_by(model_folder, **{name: [] for name in names})
    for member in team.values():
        member.role = "player"
    context = RolloutContext(team, self_play, {}, environment, rewards={})
    line = f"make: {make} cannot be played by {len(names)} agents of the role player"
    with pytest.raises(RunEndingError, match=line):
        run(play(context, environment.tasks("train")[0]))
    asyncio.run(environment.close())


CONFIG = """
team:
  ann: {policy: actor, role: player, sampling: {max_tokens: 8}}
  ben: {policy: actor, role: player, sampling: {max_tokens: 8}}
policies: {actor: {base: "tiny:kuhn"}}
workflow: {name: self_play}
environment: {name: textarena, make: TicTacToe-v0-train, test_size: 2}
algorithm: reinforce_baseline
rollout: {groups: 4, group_size: 2}
trainer: {steps: 2}
"""


def test_a_team_is_trained_on_a_game(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert command("train", tmp_path / "c.yaml", "--output", tmp_path / "run") == 0
    for step in (1, 2):
        episodes = read_parquet(RunFolder(tmp_path / "run").episode_file(step))
        assert [episode.error for episode in episodes] == [None] * 8
        assert all(episode.rewards["ann"] == -episode.rewards["ben"] for episode in episodes)


def test_a_run_with_an_unknown_game_ends_before_it_begins(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(CONFIG)
    change = "environment.make=TicTacTo-v0"
    assert command("train", tmp_path / "c.yaml", change, "--output", tmp_path / "run") == 2
    line = "environment: make: textarena has no 'TicTacTo-v0'; nearest: TicTacToe-v0"
    assert line in capsys.readouterr().err
