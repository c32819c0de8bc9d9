"""Scores on disk: what is asked again, and what is not."""

import asyncio

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.rewards.coach.cache import Cache, cache_key
from rolecall.rewards.coach.scores import Score, Usage, Verdict
from tests.rewards.coach.server import Said, coach_of, eight, play, said, serving

pytestmark = pytest.mark.slow


def test_an_equal_question_is_asked_once_and_costs_nothing_again(tmp_path):
    first, second = said("a", name="1:t:0"), said("a", name="2:t:5")
    server, _ = play(eight, first, cache=str(tmp_path))
    assert len(server.asked) == 1
    server, coach = play(eight, second, cache=str(tmp_path))
    assert server.asked == []
    written = second.turns[0].coach.note
    assert (written.score, written.cached, written.usage["tries"]) == (8.0, True, 0)
    assert second.turns[0].rewards == first.turns[0].rewards == {"coach": 0.8}
    assert coach.totals["agent0"].cached == 1
    assert second.metrics["count/coach_calls"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"replies": {"temperature": 0.3}}, {"replies": {"max_tokens": 99}},
        {"answers": {"structured": False}}, {"view": {"team": {"a": "b"}}},
        {"engine": {"extra": {"reasoning_effort": "low"}}},
    ],
)  # fmt: skip
def test_another_question_or_sampling_is_another_key(tmp_path, change):
    play(eight, said("a"), cache=str(tmp_path))
    server, _ = play(eight, said("a"), cache=str(tmp_path), **change)
    assert len(server.asked) == 1
    server, _ = play(eight, said("b"), cache=str(tmp_path))
    assert len(server.asked) == 1


def test_equal_questions_at_once_are_one_request(tmp_path):
    async def go():
        async with serving(eight) as server:
            coach = coach_of(server, cache=str(tmp_path))
            attempts = [said("a", name=f"1:t:{number}") for number in range(4)]
            await asyncio.gather(*(coach(attempt, World()) for attempt in attempts))
            return len(server.asked), attempts

    asked, attempts = asyncio.run(go())
    assert asked == 1
    assert [attempt.turns[0].rewards["coach"] for attempt in attempts] == [0.8] * 4


@pytest.mark.parametrize("held", ["", "{}", '{"verdict": 1, "usage": 2}', "[1"])
def test_a_file_that_is_no_score_is_named_and_asked_again(tmp_path, caplog, held):
    play(eight, said("a"), cache=str(tmp_path))
    [file] = tmp_path.rglob("*.json")
    file.write_text(held)
    server, _ = play(eight, said("a"), cache=str(tmp_path))
    assert len(server.asked) == 1
    assert str(file) in caplog.text


def test_errors_are_not_cached(tmp_path):
    lost, found = said("a"), said("a")
    play(lambda _: Said("?"), lost, cache=str(tmp_path), answers={"retries": 0})
    assert lost.turns[0].coach.error
    play(eight, found, cache=str(tmp_path))
    assert found.turns[0].rewards == {"coach": 0.8}


def test_coaches_share_a_folder_and_a_killed_write_leaves_nothing_to_read(tmp_path):
    cache = Cache(tmp_path)
    score = Score(Verdict(7.0, "r", True), Usage("m", tries=2))
    key = cache_key("a", {"b": [1]})
    (tmp_path / key[:2]).mkdir()
    (tmp_path / key[:2] / f"{key}.json.1.tmp").write_text('{"verd')
    assert cache.get(key) is None
    cache.put(key, score, raw="text")
    held = Cache(tmp_path).get(key)
    assert held is not None
    assert (held.verdict, held.cached) == (score.verdict, True)

    async def go():
        async with serving(eight) as server:
            coaches = [coach_of(server, cache=str(tmp_path)) for _ in range(4)]
            episodes = [said("a", "b", "c") for _ in coaches]
            async with asyncio.TaskGroup() as group:
                for coach, episode in zip(coaches, episodes, strict=True):
                    group.create_task(coach(episode, World()))
            return episodes

    for episode in asyncio.run(go()):
        assert [turn.rewards["coach"] for turn in episode.turns] == [0.8] * 3
    assert len(list(tmp_path.rglob("*.json"))) == 1 + 3
