"""What an episode comes to when one turn says something else, in pairs of draws."""

from __future__ import annotations

import asyncio
import json

import pytest

from rolecall.core.types import Swap
from rolecall.explain.replays import ReplayError
from rolecall.explain.whatif import WhatIf, change_turn
from rolecall.explain.whatif_table import verdict
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from tests.explain.test_blame import RELIABLE, play
from tests.explain.test_blame import run as run  # a fixture
from tests.toy import command


def change(words: dict[int, str], number: int, text: str | None, **options) -> WhatIf:
    """Change a turn of an episode of three agents, each of which says `good` or `bad`."""
    rate = options.pop("rate", RELIABLE)

    async def replay(made, kept, *, draw, swap: Swap | None):
        said = {n: one.text for n, one in enumerate(made.turns[:kept])}
        if swap is not None:
            said[swap.path[0]] = swap.text
        return play(said, rate=rate, draw=draw)

    made = play(words, rate=rate, draw=-1)
    return asyncio.run(change_turn(made, made.turns[number].id, text, replay, **options))


def test_a_fault_that_is_mended_gains_what_the_rest_of_the_team_is_worth():
    result = change({0: "good", 1: "bad", 2: "good"}, 1, "good", draws=64)
    assert (result.score, result.unchanged.mean) == (0.0, 0.0)
    assert result.changed.mean == pytest.approx(RELIABLE, abs=0.1)
    assert result.difference.mean == result.changed.mean
    assert verdict(result).startswith("the change gains +0.")
    assert (result.text, result.change) == ("bad", "good")
    assert ([len(result.kept), len(result.again)], result.agent) == ([1, 1], "b")


def test_the_same_words_change_nothing_in_any_draw():
    """Both arms have the same luck, so that even few draws have no margin."""
    result = change({0: "good", 1: "good", 2: "bad"}, 1, "good", draws=4, rate=0.5)
    assert (result.difference.mean, result.difference.margin) == (0.0, 0.0)
    assert [draw.changed for draw in result.draws] == [draw.unchanged for draw in result.draws]
    assert {draw.changed for draw in result.draws} == {0.0, 1.0}
    assert verdict(result).startswith("no difference beyond chance")


def test_a_turn_that_is_sampled_anew_is_sampled_in_one_arm_alone():
    result = change({0: "good", 1: "bad", 2: "good"}, 1, None, draws=64)
    assert result.change is None
    assert result.unchanged.mean == 0.0
    assert result.changed.mean == pytest.approx(RELIABLE**2, abs=0.12)


def test_the_first_draws_can_be_read():
    result = change({0: "good", 1: "bad", 2: "good"}, 1, "good", draws=5)
    first, *_, last = result.draws
    assert [one.text for one in first.unchanged_turns][:1] == ["bad"]
    assert [one.text for one in first.changed_turns][:1] == ["good"]
    assert [(one.path, one.agent) for one in first.changed_turns] == [("1", "b"), ("2", "c")]
    assert last.changed_turns == []


def test_a_replay_that_deviates_leaves_its_draw_out_of_the_difference():
    made = play({0: "good", 1: "bad", 2: "good"}, rate=RELIABLE, draw=-1)

    async def replay(made, kept, *, draw, swap):
        return play({0: "other" if draw else "good", 1: "bad"}, rate=RELIABLE, draw=draw)

    result = asyncio.run(change_turn(made, made.turns[1].id, "good", replay, draws=3))
    assert (result.num_failed, result.draws[1].changed) == (4, None)
    assert "turn 0 was not repeated" in result.notes[0]
    made.turns[0].text = "said once and never again"
    with pytest.raises(ReplayError):
        asyncio.run(change_turn(made, made.turns[1].id, "good", replay, draws=3))
    with pytest.raises(ValueError, match="has no turn 'x'"):
        asyncio.run(change_turn(made, "x", "good", replay, draws=3))


@pytest.mark.slow
def test_a_turn_of_a_run_is_changed(run, capsys):
    turn = read_parquet(RunFolder(run).episode_file(2))[0].turns[0]
    capsys.readouterr()
    words = ("--turn", turn.id, "--say", turn.text, "--draws", 4, "--json", "-")
    assert command("whatif", run, *words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["weights"] == "checkpoint step-1, which sampled it"
    assert (result["num_failed"], len(result["draws"])) == (0, 4)
    assert result["difference"]["mean"] == pytest.approx(
        result["changed"]["mean"] - result["unchanged"]["mean"]
    )
    assert command("whatif", run, "--turn", turn.id, "--draws", 2, "--checkpoint", "first") == 0
    assert "the weights that the run began with; step 2 was sampled by" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--turn", "none"), "has no turn or episode 'none'"),
        (("--turn", "best"), "is an episode; name one of its turns"),
        (("--turn", "best", "--checkpoint", "step-99"), "no checkpoint 'step-99'"),
    ],
)
def test_what_cannot_be_changed_is_said_in_one_line(run, capsys, options, error):
    assert command("whatif", run, *options) == 2
    assert error in capsys.readouterr().err
