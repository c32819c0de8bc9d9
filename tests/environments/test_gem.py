"""Environments of gem, which has a Python of its own, are played to known scores and trained on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rolecall.core.errors import RunEndingError
from rolecall.environments.gem import GemEnvironment
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.workflows.multi_turn import multi_turn
from tests.environments.contexts import play_in, said_by
from tests.toy import command
from tests.workflows.teams import shown

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/gem/bin/python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not PYTHON.exists(), reason="make build/gem installs it"),
]
GUESS = "game:GuessTheNumber-v0-easy"


def play_world(folder, says: list[str], *, make: str = GUESS, index: int = 0, **options):
    environment = GemEnvironment(make, python=str(PYTHON), **options)
    team = said_by(folder, actor=says)
    task = environment.tasks("test")[index]
    try:
        return play_in(environment, task, multi_turn, team, {"max_turns": 20})
    finally:
        asyncio.run(environment.close())


def test_a_number_is_guessed_and_a_seed_says_which(model_folder):
    guesses = [f"\\boxed{{{number}}}" for number in range(1, 11)]
    numbers = []
    for index in (0, 1, 2, 0):
        episode = play_world(model_folder, guesses, index=index, options={"max_turns": 20}, low=0.0)
        assert episode.scores["team"] == 1.0
        numbers.append(len(episode.turns))
    assert numbers[0] == numbers[3]
    assert len(set(numbers)) > 1


def test_an_observation_ends_with_its_suffix(model_folder):
    episode = play_world(model_folder, ["\\boxed{11}", "\\boxed{12}", "no number"])
    assert "to start the game.\nEnter your next guess." in shown(episode.turns[0])
    second = episode.turns[1].messages[-1].content
    assert second.endswith("which is outside the range specified.\nEnter your next guess.")


def test_what_cannot_be_read_scores_0_and_nothing_scores_above_it(model_folder):
    unread = play_world(model_folder, ["no number"])
    assert (len(unread.turns), unread.scores["team"]) == (1, 0.0)
    wrong = play_world(model_folder, ["\\boxed{11}"] * 4)
    assert wrong.scores["team"] == pytest.approx(0.1 / 1.1)


@pytest.mark.parametrize(
    ("make", "says", "num_turns"),
    [("game:TowerofHanoi-v0-easy", ["\\boxed{A C}", "\\boxed{A B}", "nothing"], 3),
     ("rg:leg_counting", ["\\boxed{4}"], 1)],
)  # fmt: skip
def test_other_worlds_are_played(model_folder, make, says, num_turns):
    episode = play_world(model_folder, says, make=make)
    assert len(episode.turns) == num_turns
    assert 0.0 <= episode.scores["team"] <= 1.0


@pytest.mark.parametrize(
    ("make", "line"),
    [
        ("game:GuessTheNumber-v0", "make: gem has no .*; nearest: game:GuessTheNumber-v0-"),
        (
            "game:Wordle-v0-easy",
            "the data 'words' of nltk is missing; run `.* -m nltk.downloader words`",
        ),
    ],
)
def test_what_cannot_be_made_ends_the_run_with_one_line(monkeypatch, tmp_path, make, line):
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NLTK_DOWNLOAD_URL", "http://127.0.0.1:9")
    environment = GemEnvironment(make, python=str(PYTHON))
    with pytest.raises(RunEndingError, match=line):
        asyncio.run(environment.check())


CONFIG = f"""
team:
  actor: {{policy: actor, sampling: {{max_tokens: 8}}}}
policies: {{actor: {{base: "tiny:math"}}}}
workflow: {{name: multi_turn, max_turns: 3}}
environment: {{name: gem, make: "{GUESS}", python: "{PYTHON}", test_size: 2}}
algorithm: grpo
rollout: {{groups: 2, group_size: 2}}
trainer: {{steps: 2}}
rewards: {{"{__file__}:alternate": 1.0}}
"""


def test_an_agent_is_trained_on_it(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert command("train", tmp_path / "c.yaml", "--output", tmp_path / "run") == 0
    for step in (1, 2):
        episodes = read_parquet(RunFolder(tmp_path / "run").episode_file(step))
        assert [episode.error for episode in episodes] == [None] * 4
        assert sorted(episode.rewards["team"] for episode in episodes) == [0.0, 0.0, 1.0, 1.0]


async def alternate(episode, world):
    return {"team": float(episode.attempt % 2)}
