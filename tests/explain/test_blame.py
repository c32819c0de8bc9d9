"""Values of prefixes, gains that add up, and which turn decided an episode."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode, Swap, Task
from rolecall.explain.blame import Blame, blame_episode
from rolecall.explain.blame_table import verdict
from rolecall.explain.replays import ReplayError, difference, estimate
from rolecall.runs.replaying import REPEATABLE, check_tools, choose_weights, find_task
from rolecall.storage.run_folder import RunFolder
from tests.toy import command, episode, relay_config, turn, write

AGENTS = ("a", "b", "c")
RELIABLE = 0.9


def play(words: dict[int, str], *, rate: float, draw: int) -> Episode:
    """Three agents in turn; each says `good` with the rate unless told otherwise.

    The team scores 1 if all have said `good`.
    """
    turns = []
    for number, agent in enumerate(AGENTS):
        chance = Random(f"{draw}/{number}").random()
        one = turn(agent, path=(number,), tokens=[1, 2])
        one.text = words.get(number, "good" if chance < rate else "bad")
        turns.append(one)
    score = float(all(one.text == "good" for one in turns))
    made = episode(0, turns, {"team": score})
    made.scores = {"team": score}
    return made


def blamed(words: dict[int, str], *, rate: float = RELIABLE, draws: int = 16, **options) -> Blame:
    async def replay(made: Episode, kept: int, *, draw: int, swap: Swap | None) -> Episode:
        said = {number: one.text for number, one in enumerate(made.turns[:kept])}
        if swap is not None:
            silent = swap.text is not None
            said[swap.path[0]] = "" if silent else str(swap.policy)
        return play(said, rate=rate, draw=draw)

    made = play(words, rate=rate, draw=-1)
    return asyncio.run(blame_episode(made, replay, draws=draws, **options))


@pytest.mark.parametrize("number", range(3))
def test_the_turn_with_the_fault_is_named(number):
    result = blamed({n: "bad" if n == number else "good" for n in range(3)}, rate=0.97)
    assert result.score == 0.0
    assert result.culprit is not None
    assert result.culprit.agent == AGENTS[number]
    assert verdict(result).startswith(f"{AGENTS[number]}'s turn ")


def test_the_first_of_two_faults_is_named():
    result = blamed({0: "good", 1: "bad", 2: "bad"}, rate=0.97)
    assert result.culprit.agent == "b"
    assert result.turns[2].gain.mean == 0.0  # nothing was left to lose


def test_gains_add_up_to_the_score_less_what_was_expected():
    for words in ({0: "good", 1: "good", 2: "good"}, {0: "good", 1: "bad", 2: "good"}):
        result = blamed(words, rate=0.6, draws=32)
        gains = sum(one.gain.mean for one in result.turns)
        assert gains == pytest.approx(result.score - result.expected.mean)
        assert sum(result.gains.values()) == pytest.approx(gains)
        assert result.num_replays == 3 * 2 * 32


def test_a_success_has_no_culprit_and_luck_has_a_saviour():
    result = blamed({0: "good", 1: "good", 2: "good"}, rate=0.97)
    assert result.culprit is None
    assert result.saviour is None
    assert "no single turn" in verdict(result)
    result = blamed({0: "good", 1: "good", 2: "good"}, rate=0.3)
    assert result.culprit is None
    assert result.saviour is not None


def test_silence_and_untrained_weights_are_compared_with_what_was_said():
    base = {"b": "bad"}  # stands for a policy that says this
    result = blamed({0: "good", 1: "good", 2: "good"}, base=base)
    assert [one.over_silence.mean for one in result.turns] == pytest.approx(
        [one.after.mean for one in result.turns]
    )
    assert result.turns[1].over_base.mean == pytest.approx(result.turns[1].after.mean)
    assert result.turns[0].over_base is None
    assert result.num_replays == 3 * 2 * 16 + 16


def test_draws_are_compared_with_the_same_draws():
    """Common random numbers: luck that both have is in no margin."""
    after, before = [1.0, 0.0, 1.0, 0.0], [0.5, -0.5, 0.5, -0.5]
    assert difference(after, before).mean == 0.5
    assert difference(after, before).margin == 0.0
    assert estimate(after).margin > 0.5
    assert difference([1.0, None, 1.0], [0.0, 1.0, None]).mean == 1.0
    with pytest.raises(RuntimeError, match="every replay"):
        estimate([None, None])


def test_candidates_of_a_call_are_one_turn():
    first = [turn("a", path=(0, n), tokens=[1]) for n in range(3)]
    for number, one in enumerate(first):
        one.candidate, one.chosen = number, number == 1
    last = turn("b", path=(1,), tokens=[1])
    made = episode(0, [*first, last], {"team": 1.0})
    kepts = set()

    async def replay(made, kept, *, draw, swap):
        kepts.add((kept, None if swap is None else swap.path))
        return made

    result = asyncio.run(blame_episode(made, replay, draws=2))
    assert [one.agent for one in result.turns] == ["a", "b"]
    assert kepts == {(0, None), (3, None), (0, (0,)), (3, (1,))}


def test_a_replay_that_does_not_begin_like_the_episode_is_not_counted():
    """As where a tool of the world outside answers otherwise than before."""
    made = play({0: "good", 1: "bad", 2: "good"}, rate=RELIABLE, draw=-1)

    async def replay(made, kept, *, draw, swap):
        others = {0: "good", 1: "bad" if draw % 2 else "other"}
        return play(others, rate=RELIABLE, draw=draw)

    result = asyncio.run(blame_episode(made, replay, draws=4))
    assert result.num_failed == 4  # those in which the second turn is kept, and is another one
    assert "turn 1 was not repeated" in result.notes[0]
    made.turns[0].text = "said once and never again"
    with pytest.raises(ReplayError):
        asyncio.run(blame_episode(made, replay, draws=4))


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("blame")
    config = relay_config(model_folder, trainer={"steps": 4, "pin": [1], "keep": 1})
    assert command("train", write(place / "c.yaml", config), "--output", place / "run") == 0
    return place / "run"


@pytest.mark.slow
def test_a_pinned_checkpoint_stays_and_is_the_one_that_is_played(run, capsys):
    there = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert there == ["step-1", "step-4"]
    folder = RunFolder.existing(run)
    assert choose_weights(folder, 1).name is None
    assert choose_weights(folder, 2).is_exact
    assert choose_weights(folder, 4).name == "step-4"
    capsys.readouterr()
    assert command("blame", run, "--step", 2, "--draws", 4, "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["weights"] == "checkpoint step-1, which sampled it"
    assert result["num_failed"] == 0
    gains = sum(one["gain"]["mean"] for one in result["turns"])
    assert gains == pytest.approx(result["score"] - result["expected"]["mean"])


@pytest.mark.slow
def test_what_cannot_be_blamed_is_said_in_one_line(run, capsys):
    assert command("blame", run, "--episode", "none") == 2
    assert "has no turn or episode 'none'" in capsys.readouterr().err
    assert command("blame", run, "--step", 99) == 2
    assert "no episodes of step 99" in capsys.readouterr().err
    assert command("blame", run.parent) == 2


BELL = """
def ring(word: str) -> str:
    \"\"\"Ring a bell.\"\"\"
    return word
"""


@pytest.mark.slow
def test_tools_that_act_outside_are_called_again_only_on_request(model_folder, tmp_path, capsys):
    (tmp_path / "bell.py").write_text(BELL)
    short = {"trainer": {"steps": 1}, "rollout": {"groups": 1, "group_size": 2}}
    config = relay_config(model_folder, **short)
    config["team"]["last"]["tools"] = {"use": [f"{tmp_path}/bell.py:ring"], "format": "tags"}
    run = tmp_path / "run"
    assert command("train", write(tmp_path / "c.yaml", config), "--output", run) in (0, 1)
    capsys.readouterr()
    assert command("blame", run) == 2
    error = capsys.readouterr().err
    assert "calls the tools of last again" in error
    assert "bell.py:ring may act outside of the episode; add --call-tools" in error
    assert command("blame", run, "--draws", 2, "--call-tools") == 0
    config["team"]["last"]["tools"] = {"use": sorted(REPEATABLE)}
    check_tools(Config.model_validate(config), "0")


def test_a_task_that_is_gone_is_said():
    task = Task("7", "2 + 2?", "4", {"source": "mine"})
    others = [Task("8", "1 + 1?"), Task("7", "the same number elsewhere")]
    sampler = SimpleNamespace(parts={"": others}, sample=lambda step: [])
    run = SimpleNamespace(test=[], validation=[], sampler=sampler)
    with pytest.raises(ConfigError, match="no task '7' any more"):
        find_task(run, task, step=1)
    others.append(task)
    assert find_task(run, replace(task, answer="lost"), step=1) is task
