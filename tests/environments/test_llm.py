"""A frozen LLM answers agents over a real socket, whatever the server does to it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.types import Episode
from rolecall.environments.llm.environment import LlmEnvironment, read_score
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runtime.call_tree import task_factory
from rolecall.workflows.multi_turn import multi_turn
from tests.chat_models import chat_model, judge_config
from tests.engines.servers import claude, gemini
from tests.environments.contexts import play_in, said_by
from tests.retrieval.foreign import nobody, serving

pytestmark = pytest.mark.slow

ROW = {"question": "Book what the guest wants.", "answer": "room 417", "wish": "a quiet room"}


def says(text: str | None, finish: str = "stop") -> tuple[int, dict[str, Any]]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    told = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
    return 200, told | {"choices": [choice]}


def server(*replies, **headers):
    """Answers request n with replies[n - 1], and all later ones with the last."""

    def reply(body, number):
        said = replies[min(number, len(replies)) - 1]
        return said(body) if callable(said) else said

    return serving(reply, Content_Type="application/json", **headers)


@pytest.fixture
def open_world(tmp_path):
    path = tmp_path / "guests.jsonl"
    path.write_text(json.dumps(ROW))

    def make(url: str, *, engine=(), replies=(), **options):
        config = judge_config(url, engine={"key_env": None} | dict(engine), replies=replies)
        model = chat_model(config)
        environment = LlmEnvironment(
            model, "You are a hotel guest.", str(path), str(path), **options
        )
        [task] = environment.tasks("train")
        return environment, task

    return make


def steps(environment, task, *actions, seed=0):
    """-> the world and what it answered."""

    async def main():
        world = environment.open(task, seed=seed)
        seen = [await world.reset()]
        try:
            for action in actions:
                seen.append(await world.step("clerk", action))
        finally:
            await environment.llm.policy.engine.close()
        return world, seen[1:]

    return asyncio.run(main())


def test_the_model_is_sent_the_dialogue_so_far_and_agents_see_its_words_without_thinking(
    open_world,
):
    with server(
        says("<think>417 is theirs</think> A quiet one."), says("Fine.\n[done]")
    ) as foreign:
        options = {"secret": "wish", "replies": {"temperature": 0.5}}
        environment, task = open_world(foreign.url, **options)
        _, seen = steps(environment, task, "<think>hm</think>Which room?", "417?", seed=7)
        steps(environment, task, "Which room?", seed=7)
    assert [(o.text, o.done) for o in seen] == [("A quiet one.", False), ("Fine.", True)]
    first, second, again = foreign.bodies
    system, *rest = second["messages"]
    assert rest == [
        {"role": "user", "content": "[clerk]\nWhich room?"},
        {"role": "assistant", "content": "A quiet one."},
        {"role": "user", "content": "[clerk]\n417?"},
    ]
    for told in ("hotel guest", ROW["question"], ROW["wish"], "[done]"):
        assert told in system["content"]
    assert (first["temperature"], first["model"]) == (0.5, "m")
    assert first["seed"] == again["seed"] != second["seed"]


@pytest.mark.parametrize(("name", "says"), [("anthropic", claude), ("google", gemini)])
def test_every_provider_may_be_the_user(open_world, name, says, monkeypatch):
    monkeypatch.setenv("GUEST_KEY", "sk-secret-1")
    with serving(lambda body, number: (200, says(f"reply {number}"))) as foreign:
        environment, task = open_world(foreign.url, engine={"name": name, "key_env": "GUEST_KEY"})
        _, seen = steps(environment, task, "Which room?", "417?")
    assert [one.text for one in seen] == ["reply 1", "reply 2"]
    second = foreign.bodies[1]
    turns = second.get("messages") or second["contents"]
    assert [turn["role"] for turn in turns] in (
        ["user", "assistant", "user"], ["user", "model", "user"]
    )  # fmt: skip
    assert "hotel guest" in json.dumps(second.get("system") or second["systemInstruction"])


def test_a_whole_episode_ends_when_the_model_says_so_and_never_shows_the_reference(
    open_world, model_folder
):
    with server(says("Something quiet."), says("Thanks [done]")) as foreign:
        environment, task = open_world(foreign.url)
        answers = ["Which room?", "<answer>Room 417.</answer>"]
        team = said_by(model_folder, actor=answers)
        episode = play_in(environment, task, multi_turn, team)
        assert ROW["answer"] not in json.dumps(foreign.bodies[0])
    assert episode.scores["team"] == 1.0
    assert episode.metrics["count/llm_replies"] == 2
    assert [turn.path for turn in episode.turns] == [(0,), (1,)]  # the SDK's tasks take no number
    shown = [message.content for turn in episode.turns for message in turn.messages]
    assert "Something quiet." in shown[-1]
    assert not any(ROW["answer"] in text for text in shown)


def test_the_model_may_speak_first_and_a_fork_goes_its_own_way(open_world):
    with server(lambda body: says(f"{len(body['messages'])} messages")) as foreign:
        environment, task = open_world(foreign.url, opens=True)

        async def main():
            world = environment.open(task, seed=0)
            opened = await world.reset()
            fork = await world.fork()
            await fork.step("a", "one")
            seen = await fork.step("a", "two"), await world.step("b", "one")
            await environment.llm.policy.engine.close()
            return opened.text, [s.text for s in seen]

        assert asyncio.run(main()) == ("2 messages", ["6 messages", "4 messages"])


def test_agents_that_speak_at_once_are_all_heard_in_the_order_of_the_code(open_world):
    with server(lambda body: time.sleep(0.02) or says("Yes.")) as foreign:
        environment, task = open_world(foreign.url)

        async def main():
            world = environment.open(task, seed=0)
            await asyncio.gather(*(world.step(name, "Is it?") for name in ("a", "b", "c")))
            await environment.llm.policy.engine.close()
            return [said.content for said in world.dialogue if said.role == "user"]

        assert asyncio.run(main()) == ["[a]\nIs it?", "[b]\nIs it?", "[c]\nIs it?"]


def judged(environment, task, answer):
    async def main():
        world = environment.open(task, seed=0)
        try:
            return await world.score(Episode("e", task, 0, 0, answer=answer))
        finally:
            await environment.llm.policy.engine.close()

    return asyncio.run(main())


def test_the_model_scores_at_the_end_and_only_then_sees_the_reference(open_world):
    with server(says("no idea"), says("Well done. <score>0.75</score>")) as foreign:
        environment, task = open_world(foreign.url, score="model", scoring="Was it polite?")
        assert judged(environment, task, "<think>x</think>Room 417") == {"team": 0.75}
    asked = foreign.bodies[1]["messages"][-1]["content"]
    for told in ("Room 417", "Was it polite?", "reference answer", ROW["answer"]):
        assert told in asked
    assert "<think>" not in asked
    assert foreign.bodies[0]["seed"] != foreign.bodies[1]["seed"]  # or it would say the same


def test_a_model_that_names_no_score_is_an_error_and_never_a_zero(open_world):
    with server(says("<score>8</score>")) as foreign:
        environment, task = open_world(foreign.url, score="model", answer=None)
        with pytest.raises(InfrastructureError, match="no score in 3 replies"):
            judged(environment, task, "Room 417")
    assert len(foreign.bodies) == 3


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("<score>0.5</score>", 0.5), ("So.\n<score> 1 </score>\n", 1.0), ("<score>0</score>", 0.0),
        ("<score>1.5</score>", None), ("<score>-0.5</score>", None), ("<score>8/10</score>", None),
        ("<score>nan</score>", None), ("<score>1</score> or so", None), ("0.5", None),
        ("<score>0</score><score>1</score>", None), ("<score>x</score> <score>1</score>", None),
        ("<score>0.5", None), ("", None),
    ],
)  # fmt: skip
def test_a_score_is_one_number_from_0_to_1_at_the_end(reply, score):
    assert read_score(reply) == score


@pytest.mark.parametrize(
    "trouble",
    [
        (500, {"error": "x"}), (503, b"<html>busy</html>"), (429, {}), (200, b"not json"),
        (200, {"choices": []}), (200, {"choices": None}), (200, []), says(None), says(" "),
        says("<think>never ends"), says("<think>x</think>"),
    ],
)  # fmt: skip
def test_what_may_pass_is_asked_again_until_there_is_an_answer(open_world, trouble):
    with server(trouble, says("Yes.")) as foreign:
        environment, task = open_world(foreign.url)
        assert steps(environment, task, "Is it?")[1][0].text == "Yes."
    assert len(foreign.bodies) == 2


def test_a_server_that_asks_for_patience_gets_it(open_world):
    with server((429, {}), says("Yes."), Retry_After="1") as foreign:
        environment, task = open_world(foreign.url)
        began = time.monotonic()
        steps(environment, task, "Is it?")
    assert time.monotonic() - began > 0.9


def test_a_server_that_never_answers_costs_the_deadline_and_no_more(open_world):
    hangs = lambda body: time.sleep(20) or says("Too late.")  # noqa: E731
    with server(hangs) as foreign:
        environment, task = open_world(foreign.url, engine={"request_s": 0.3, "timeout_s": 1.0})
        began = time.monotonic()
        told = r"no result within 1 s; last: no answer within 0\.3 s"
        with pytest.raises(InfrastructureError, match=told):
            steps(environment, task, "Hello?")
        assert time.monotonic() - began < 5
        assert len(foreign.bodies) >= 2


@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "refuses the key"), (403, "refuses the key"), (404, "knows no such model or path")],
)
def test_a_refused_key_model_or_address_ends_the_run_and_does_not_tell_the_key(
    open_world, status, told, monkeypatch
):
    monkeypatch.setenv("GUEST_KEY", "sk-secret-1")
    with server((status, {"error": {"message": "bad key sk-secret-1"}})) as foreign:
        environment, task = open_world(foreign.url, engine={"key_env": "GUEST_KEY"})
        with pytest.raises(RunEndingError, match=told) as raised:
            steps(environment, task, "Hello?")
    assert "sk-secret-1" not in str(raised.value)
    assert len(foreign.bodies) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        (400, {"error": "maximum context length is 8"}), (413, {"error": "large"}),
        says("A long sto", finish="length"),
    ],
)  # fmt: skip
def test_what_only_this_dialogue_did_wrong_is_an_error_of_this_episode(open_world, trouble):
    with server(trouble) as foreign:
        environment, task = open_world(foreign.url)
        with pytest.raises(InfrastructureError) as raised:
            steps(environment, task, "Hello?")
    assert not isinstance(raised.value, RunEndingError)
    assert len(foreign.bodies) == 1


def test_an_episode_without_an_answer_is_an_error_and_has_no_reward(open_world, model_folder):
    environment, task = open_world(nobody(), engine={"timeout_s": 0.5})
    team = said_by(model_folder, actor=["Hello?"])

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await play(RolloutContext(team, multi_turn, {}, environment, rewards={}), task)

    episode = asyncio.run(main())
    assert episode.error is not None
    assert episode.error.startswith("InfrastructureError: ")
    assert "team" not in episode.scores


def test_no_more_requests_are_under_way_than_are_allowed(open_world):
    under_way, most = [0], [0]

    def slow(body):
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        time.sleep(0.05)
        under_way[0] -= 1
        return says("Yes.")

    with server(slow) as foreign:
        environment, task = open_world(foreign.url, engine={"concurrency": 2})

        async def main():
            worlds = [environment.open(task, seed=n) for n in range(8)]
            await asyncio.gather(*(world.step("a", "Is it?") for world in worlds))
            await environment.llm.policy.engine.close()

        asyncio.run(main())
    assert most[0] == 2


def test_settings_that_cannot_work_are_errors(open_world):
    for options, told in (
        ({"answer": None}, "needs the column"),
        ({"scoring": "Well?"}, "no effect"),
        ({"secret": "hobby"}, r"guests\.jsonl:1: nothing in 'hobby'"),
        ({"secret": "answer"}, "nothing in 'answer'"),  # the reference is told to nobody
    ):
        with pytest.raises(ValueError, match=told):
            open_world("http://127.0.0.1:9", **options)
