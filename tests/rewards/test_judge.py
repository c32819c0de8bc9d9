"""The reward `judge`: a prompt of the user's own, and the number that is read from the reply."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.config import registry
from rolecall.core.errors import ConfigError, InfrastructureError
from rolecall.core.interfaces.chat_model import ChatModel, Reply
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task
from rolecall.rewards.coach.scores import CoachError, CoachStopError
from rolecall.rewards.coach.sections import Tries
from rolecall.rewards.judge import JudgedAnswer
from tests import toy

PROMPT = 'Task: {task}\nAnswer: {answer}\nRight: {reference}\nWrite {"score": x} or {x}.'
NUMBER = r"Score: (-?\d+)"


class Scripted(ChatModel):
    """An LLM that says what it is told to, in this order, and keeps what it was asked."""

    model, identity, is_local = "m", "m at 0", False

    def __init__(self, *replies: str | Reply | Exception) -> None:
        self.replies = list(replies)
        self.asked: list[str] = []

    async def reply(self, messages, *, seed, schema=None, max_tokens=None) -> Reply:
        assert schema is None
        assert [message.role for message in messages] == ["user"]
        self.asked.append(messages[0].content)
        said = self.replies.pop(0)
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Reply) else Reply(said, "m", usd=0.25, prompt_tokens=3)


def answered(text: str, *, answer: object = "four", name: str = "4:t:0") -> Episode:
    turns = [toy.turn("solver", episode=name, path=(number,)) for number in range(2)]
    return Episode(name, Task("t", "2 + 2?", answer), 0, seed=0, turns=turns, answer=text)


def judge(*replies, episode: Episode | None = None, **options) -> tuple[dict, Episode, Scripted]:
    llm = Scripted(*replies)
    options = {"prompt": PROMPT, "score": NUMBER, "scale": (0, 10)} | options
    episode = episode or answered("<think>hm</think>{task}")
    return asyncio.run(JudgedAnswer(policy=llm, **options)(episode, World())), episode, llm


def test_the_prompt_is_literal_and_the_last_score_counts():
    paid, episode, llm = judge("Not Score: 2, but\nScore: 7.")
    assert paid == {"team": pytest.approx(0.7)}
    assert llm.asked == ['Task: 2 + 2?\nAnswer: {task}\nRight: four\nWrite {"score": x} or {x}.']
    noted = episode.turns[1].info["judge"]
    assert (noted["score"], noted["reply"]) == (7.0, "Not Score: 2, but\nScore: 7.")
    assert episode.turns[1].coach.note is None
    assert episode.turns[0].info == {}
    assert episode.metrics == {
        "count/judge_calls": 1, "judge/tokens": 3, "judge/cost_usd": 0.25, "judge/score": 7.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "score", "scale", "paid"),
    [
        ("FIRST_BETTER", {"first_better": 1, "second_better": 0}, (0, 1), 1.0),
        ("first_better? No: SECOND_BETTER.", {"first_better": 1, "second_better": 0}, (0, 1), 0.0),
        ("It is not good", {"good": 1, "not good": -1}, (-1, 1), 0.0),
        ("Score: -1", NUMBER, (-1, 1), 0.0),
        ("<think>Score: 9</think>Score: 0", NUMBER, (-1, 1), 0.5),
        ("<score> 0.25 </score>", r"<score>\s*(\d\.\d+)\s*</score>", (0, 1), 0.25),
    ],
)
def test_a_score_is_a_share_of_its_scale(reply, score, scale, paid):
    assert judge(reply, score=score, scale=scale)[0] == {"team": pytest.approx(paid)}


UNREADABLE = ["nothing", "Score: 11", "<think>Score: 9</think>", Reply("Score: 1", "m", True)]


@pytest.mark.parametrize("reply", UNREADABLE)
def test_what_cannot_be_read_is_asked_again_and_then_costs_the_episode(reply):
    paid, episode, llm = judge(reply, "Score: 10")
    assert paid == {"team": 1.0}
    assert (len(llm.asked), episode.metrics["count/judge_calls"]) == (2, 2)
    with pytest.raises(CoachError, match="no readable score in 1 answers"):
        judge(reply, answers=Tries(retries=0))


def test_a_number_stands_for_a_missing_score_where_the_user_writes_one():
    paid, episode, _ = judge(InfrastructureError("gone"), on_error=0.5)
    assert paid == {"team": 0.5}
    assert episode.metrics["count/judge_errors"] == 1
    assert "gone" in episode.turns[1].info["judge"]["error"]


def test_too_many_missing_scores_end_the_run():
    llm = Scripted("nothing", "nothing")
    tries = Tries(retries=0, error_window=2)
    reward = JudgedAnswer(policy=llm, prompt="{answer}", on_error=0.0, answers=tries)
    for _ in range(2):
        asyncio.run(reward(answered("4"), World()))
    with pytest.raises(CoachStopError, match="the judge failed on 2 of the last 2"):
        asyncio.run(reward(answered("4"), World()))


def test_an_empty_answer_earns_0_and_an_evaluation_is_not_judged():
    assert judge(episode=answered("<think>4"))[0] == {"team": 0.0}
    held_out = answered("4", name="evaluation:t:0")
    assert judge(episode=held_out)[0] == {}
    assert judge("Score: 10", episode=held_out, in_evaluation=True)[0] == {"team": 1.0}


def test_equal_questions_are_asked_once_unless_they_are_read_otherwise(tmp_path):
    folder = str(tmp_path)
    assert judge("Score: 5", cache=folder)[0] == {"team": 0.5}
    paid, episode, llm = judge(cache=folder)
    assert (paid, llm.asked) == ({"team": 0.5}, [])
    assert episode.turns[1].info["judge"]["cached"]
    assert episode.metrics == {"count/judge_calls": 0, "judge/score": 5.0}
    assert judge("Score: 5", cache=folder, scale=(0, 20))[0] == {"team": 0.25}


def test_a_reference_may_be_several_and_must_be_there():
    _, _, llm = judge("Score: 1", episode=answered("4", answer=["4", "four"]))
    assert "Right: 4 or four" in llm.asked[0]
    with pytest.raises(ValueError, match=r"task t has no reference answer; remove \{reference\}"):
        judge(episode=answered("4", answer=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "{task}"}, "prompt: it never shows the answer; write {answer}"),
        ({"score": "("}, r"score: '\(' is no pattern"),
        ({"score": "Score"}, "has no group that holds the number"),
        ({"score": {}}, "score: name words with their scores"),
        ({"score": {"good": 11}}, r"score\.good: 11 is not within the scale, 0 to 10"),
        ({"scale": (1, 1)}, "the worst score 1 is not below the best, 1"),
        ({"on_error": 2.0}, "on_error: 2 is not within 0 to 1"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        judge(**options)
    assert "\n" not in str(error.value)


def test_a_prompt_may_stand_in_a_file(tmp_path):
    (tmp_path / "prompt.txt").write_text("Rate {answer}.")
    options = {"policy": "judge", "prompt": {"file": str(tmp_path / "prompt.txt")}}
    checked = registry.check_options(JudgedAnswer, options, key="rewards.judge", skip=0)
    assert checked["prompt"] == "Rate {answer}."
    with pytest.raises(ConfigError, match=r"rewards\.judge\.on_error"):
        registry.check_options(JudgedAnswer, options | {"on_error": "skip"}, key="rewards.judge",
                               skip=0)  # fmt: skip
