"""Agents behind OpenAI's API: what is sent, what each answer means, and what they cost."""

from __future__ import annotations

import asyncio
import json
import re
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import yaml

from rolecall.config.load import load
from rolecall.config.served import OpenAIEngineConfig
from rolecall.core.errors import ConfigError, InfrastructureError, RunEndingError
from rolecall.core.interfaces.engine import ContextFullError, Question, Request, Sampling
from rolecall.core.types import Message
from rolecall.engines.served.connection import ServerError
from rolecall.engines.served.openai import OpenAIEngine
from rolecall.engines.served.provider import BudgetSpentError
from rolecall.placement.devices import engine_devices
from rolecall.runtime.spending import Prices
from rolecall.setup.plan import validate
from tests.engines.servers import HANG_UP, Asked, Told, chat, refused, serving
from tests.retrieval.foreign import nobody
from tests.toy import relay_config, write

pytestmark = pytest.mark.slow

KEY = "sk-very-secret"
CHAT = "/v1/chat/completions"
SAID = [Message("system", "Be brief."), Message("user", "2+2?")]


def engine_of(
    url: str, *, key: str | None = KEY, prices: Prices | None = None, **options
) -> OpenAIEngine:
    given = {"url": f"{url}/v1", "model": "m", "timeout_s": 5.0, "pause_s": 0.01} | options
    priced = {"judge": prices} if prices else {}
    return OpenAIEngine(OpenAIEngineConfig(**given), policies=["judge"], key=key, prices=priced)


def question(messages=SAID, *, n: int = 1, name: str = "q", **sampling) -> Question:
    return Question(name, "judge", messages, Sampling(**sampling), seed=7, n=n)


def ask(rule, *, times: int = 1, asked: Question | None = None, **options):
    """-> (answers of the last time, the server)"""

    async def go(server):
        engine = engine_of(server.url, **options)
        try:
            for _ in range(times):
                found = await engine.answer(asked or question())
            return found
        finally:
            await engine.close()

    with serving(rule) as server:
        return asyncio.run(go(server)), server


def fails(rule, **options) -> Exception:
    with pytest.raises((InfrastructureError, ContextFullError)) as raised:
        ask(rule, **options)
    assert KEY not in str(raised.value)
    assert "\n" not in str(raised.value)
    return raised.value


def test_messages_are_sent_with_the_sampling_and_text_comes_back():
    earlier = Message("assistant", "<think>let me see</think>four")
    said = [*SAID, earlier, Message("user", "sure?")]
    [answer], server = ask(
        lambda asked: chat("yes"),
        asked=question(said, temperature=0.7, top_p=0.9, max_tokens=33, stop=("END",)),
        extra={"reasoning_effort": "low", "seed": None},
        prices=Prices(2.0, 0.5, 10.0),
    )  # fmt: skip
    [asked] = server.of(CHAT)
    assert asked.body == {
        "model": "m", "temperature": 0.7, "top_p": 0.9, "max_completion_tokens": 33,
        "stop": ["END"], "reasoning_effort": "low",
        "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "four"}, {"role": "user", "content": "sure?"},
        ],
    }  # fmt: skip
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert (answer.text, answer.finish, answer.refused) == ("yes", "stop", False)
    assert answer.usage == {
        "prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 10, "reasoning_tokens": 0,
        "usd": pytest.approx((60 * 2.0 + 40 * 0.5 + 10 * 10.0) / 1e6),
    }  # fmt: skip


def test_a_server_without_a_key_gets_none():
    _, server = ask(lambda asked: chat("yes"), key=None, max_tokens_key="max_tokens")
    assert "authorization" not in server.asked[0].headers
    assert server.asked[0].body["max_tokens"] == 512


def test_several_answers_are_single_requests_with_seeds_of_their_own():
    answers, server = ask(lambda asked: chat(str(asked.body["seed"])), asked=question(n=3))
    again, _ = ask(lambda asked: chat(str(asked.body["seed"])), asked=question(n=3))
    assert len({answer.text for answer in answers}) == 3
    assert [answer.text for answer in answers] == [answer.text for answer in again]
    assert all("n" not in asked.body for asked in server.asked)


@pytest.mark.parametrize(
    ("reply", "text", "finish", "refusal"),
    [
        (chat("cut o", finish="length"), "cut o", "length", False),
        (chat(""), "", "stop", False),
        (chat(None), "", "stop", False),
        (chat(None, refusal="I can not."), "I can not.", "stop", True),
        (chat("", finish="content_filter"), "", "stop", True),
        (chat("4", reasoning_content="2+2"), "<think>2+2</think>4", "stop", False),
        (chat(None, finish="length", reasoning="2+"), "<think>2+</think>", "length", False),
        (refused(400, "blocked by content_filter"), "", "stop", True),
    ],
)
def test_what_came_is_the_right_answer(reply, text, finish, refusal):
    [answer], _ = ask(lambda asked: reply)
    assert (answer.text, answer.finish, answer.refused) == (text, finish, refusal)


def test_a_stop_text_stays_where_the_server_says_which_it_was():
    def rule(asked: Asked):
        reply = chat("<answer>4")
        reply["choices"][0]["stop_reason"] = "</answer>"
        return reply

    [answer], _ = ask(rule, asked=question(stop=("</answer>", "END")))
    assert answer.text == "<answer>4</answer>"


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (refused(401, f"bad key {KEY}"), r"/v1 refuses the key: HTTP 401: .*\(key\)"),
        (refused(403, "no"), "refuses the key: HTTP 403"),
        (refused(402, "top up"), "wants to be paid: HTTP 402"),
        (refused(404, "no model m"), "knows no such model or path: HTTP 404: .*no model m"),
        (refused(429, "out", code="insufficient_quota"), "has no quota left"),
        (refused(400, "unknown parameter top_p"), "refuses the request: HTTP 400: .*top_p"),
    ],
)
def test_what_no_other_request_would_change_ends_the_run_at_once(reply, told):
    error = fails(lambda asked: reply)
    assert isinstance(error, RunEndingError)
    with pytest.raises(ServerError, match=told):
        raise error


def test_a_request_that_is_refused_after_others_were_not_is_its_own_episodes():
    def rule(asked: Asked):
        return chat("yes") if asked.number == 1 else refused(400, "odd message")

    error = fails(rule, times=2)
    assert not isinstance(error, RunEndingError)
    long = refused(400, "This model's maximum context length is 10 tokens")
    assert isinstance(fails(lambda asked: long), ContextFullError)


@pytest.mark.parametrize(
    "passing",
    [
        Told(500, {"error": "down"}), Told(429, {}, {"Retry-After": "0"}), HANG_UP, b"<html>",
        {"choices": []}, {"error": {"message": "upstream"}}, chat(7),
        chat("half an ans", finish="abort"),
    ],
)  # fmt: skip
def test_what_may_pass_is_asked_again(passing):
    [answer], server = ask(lambda asked: passing if asked.number < 3 else chat("yes"))
    assert answer.text == "yes"
    assert len(server.asked) == 3


def test_a_server_that_asks_for_a_pause_gets_it():
    began = time.monotonic()
    ask(lambda asked: Told(503, {}, {"Retry-After": "0.4"}) if asked.number == 1 else chat("yes"))
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize(
    ("passing", "told"),
    [
        (Told(500, {"error": "down"}), r"gave no answer: no result within 0\.3 s; last: HTTP 500"),
        ({"error": {"message": "upstream"}}, r"unreadable answer: no .* an error: upstream"),
    ],
)
def test_what_does_not_pass_is_told_in_one_line(passing, told):
    with pytest.raises(InfrastructureError, match=told):
        raise fails(lambda asked: passing, timeout_s=0.3)


def test_a_slow_server_and_none_at_all_end_at_the_deadline():
    def slow(asked: Asked):
        time.sleep(0.6)
        return chat("late")

    began = time.monotonic()
    error = fails(slow, timeout_s=0.2)
    assert time.monotonic() - began < 1.5
    assert "no result within 0.2 s" in str(error)
    engine = engine_of(nobody(), timeout_s=1.0)
    for call in (engine.answer(question()), engine.check()):
        with pytest.raises(InfrastructureError, match=r"gave no answer: .*ConnectError"):
            asyncio.run(call)


def test_no_more_requests_are_under_way_than_allowed():
    def rule(asked: Asked):
        time.sleep(0.02)
        return chat("yes")

    _, server = ask(rule, asked=question(n=12), concurrency=3)
    assert server.most_under_way == 3
    assert len(server.asked) == 12


def test_what_is_cancelled_hangs_up():
    async def go(url):
        engine = engine_of(url)
        task = asyncio.create_task(engine.answer(question(n=2)))
        await asyncio.sleep(0.1)
        await engine.cancel("q")
        await engine.cancel("unknown")
        ended = await asyncio.gather(task, return_exceptions=True)
        await engine.close()
        return ended[0]

    def rule(asked: Asked):
        time.sleep(0.5)
        return chat("late")

    with serving(rule) as server:
        began = time.monotonic()
        assert isinstance(asyncio.run(go(server.url)), asyncio.CancelledError)
        assert time.monotonic() - began < 0.45


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"budget_tokens": 300}, "the budget of 300 tokens is spent; .*larger budget_tokens"),
        (
            {"budget_usd": 0.0003, "prices": Prices(completion=10.0)},
            r"the budget of 0\.0003 USD is spent; .*larger budget_usd",
        ),
    ],
)
def test_a_spent_budget_ends_the_run_before_the_next_request(options, told):
    """An answer takes 110 tokens, 10 of them sampled."""
    with serving(lambda asked: chat("yes")) as server:
        engine = engine_of(server.url, **options)

        async def until_it_ends():
            for _ in range(9):
                await engine.answer(question())

        with pytest.raises(BudgetSpentError, match=f"^policies.judge.engine: {told}"):
            asyncio.run(until_it_ends())
        assert len(server.asked) == 3


def test_a_budget_needs_a_server_that_counts():
    def rule(asked: Asked):
        return chat("yes") | {"usage": None}

    with pytest.raises(ServerError, match="does not say how many tokens an answer took"):
        raise fails(rule, budget_tokens=300)
    [answer], _ = ask(rule)
    assert answer.usage["prompt_tokens"] == 0


def test_an_account_goes_on_where_the_run_stopped(tmp_path):
    with serving(lambda asked: chat("yes")) as server:
        for spent in (110, 220):
            engine = engine_of(server.url, budget_tokens=1000)
            engine.account.keep(tmp_path / "spent.json")
            asyncio.run(engine.answer(question()))
            assert json.loads((tmp_path / "spent.json").read_text())["tokens"] == spent


def completion(ids, logprobs, *, finish="stop"):
    choice = {"text": "x", "finish_reason": finish, "token_ids": ids,
              "logprobs": {"token_logprobs": logprobs}}  # fmt: skip
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def sampled(rule, **options):
    prompt = np.array([5, 6, 7], np.int32)
    request = Request("r", "judge", prompt, Sampling(stop=("END",)), 7, ("t", 0, (0,)))

    async def go(url):
        engine = engine_of(url, **options)
        try:
            [one] = await engine.generate(request)
            return one
        finally:
            await engine.close()

    with serving(rule) as server:
        return asyncio.run(go(server.url)), server


def test_tokens_are_sent_to_a_server_that_gives_tokens_back():
    one, server = sampled(lambda asked: completion([9, 2], [-0.5, -1.5], finish="length"))
    body = server.of("/v1/completions")[0].body
    assert body["prompt"] == [5, 6, 7]
    assert body["return_token_ids"] is True
    assert body["logprobs"] == 0
    assert one.tokens.tolist() == [9, 2]
    assert one.logprobs.tolist() == [-0.5, -1.5]
    assert (one.finish, one.versions.tolist()) == ("length", [0, 0])
    assert one.usage["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (completion(None, [-1.0]), "gives no token_ids and logprobs .*set token_ids=false"),
        (completion([1, 2], [-1.0]), "2 token_ids with 1 log-probs"),
        (completion(["a"], [-1.0]), "are no numbers"),
        (completion([], []), "sampled no token"),
    ],
)
def test_tokens_that_are_none_are_told_in_one_line(reply, told):
    with pytest.raises(InfrastructureError, match=told):
        sampled(lambda asked: reply, timeout_s=0.3)


JUDGE = {"engine": {"name": "openai", "url": "http://127.0.0.1:1/v1", "model": "m"}}


def config_of(model_folder, tmp_path, **changes):
    config = relay_config(model_folder)
    config["policies"]["b"] = deepcopy(JUDGE)
    config["team"]["last"] |= {"trainable": False}
    for key, value in changes.items():
        place, *path, last = [config, *key.split("__")]
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return load(write(tmp_path / "team.yaml", config))


def engine(**changes):
    return {"engine": JUDGE["engine"] | changes}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"team__last__trainable": True},
            "team.last.trainable: http://127.0.0.1:1/v1 takes no new weights, so policy 'b' cannot "
            "be trained; set team.last.trainable=false, or another policies.b.engine",
        ),
        ({"policies__b__engine": "local"}, "policies.b.base: missing; write a model's folder"),
        ({"policies__b": engine(token_ids=True)}, "policies.b.base: missing: token_ids needs"),
        (
            {"policies__b": engine(token_ids=False) | {"base": "tiny:math"}},
            "policies.b.base has no effect: with token_ids=false",
        ),
        (
            {"team__last__tools": {"use": ["calculator"], "format": "native"}},
            "team.last.tools.format: native calls need a chat template",
        ),
        (
            {"trainer__deterministic": True},
            "trainer.deterministic: what a server says of a seed depends on",
        ),
        ({"policies__b": JUDGE | {"device": "cpu"}}, "policies.b.device has no effect: engine"),
        (
            {"policies__b": JUDGE | {"opponent_pool": {"of": "a"}}},
            "policies.b.opponent_pool: http://127.0.0.1:1/v1 takes no earlier weights",
        ),
        (
            {"policies__b": engine(budget_usd=1.0)},
            "policies.b.engine.budget_usd counts nothing without prices; write prices.b.prompt",
        ),
        ({"policies__b": engine(url="localhost")}, "begins with http:// or https://"),
        ({"policies__b": engine(url="http://me:pw@h/v1")}, "name its variable by key_env"),
        ({"policies__b": engine(modle="m")}, "policies.b.engine.modle: unknown key; did you mean"),
    ],
)
def test_what_a_server_cannot_do_is_an_error_before_the_run(model_folder, tmp_path, changes, told):
    with pytest.raises(ConfigError) as raised:
        validate(config_of(model_folder, tmp_path, **changes))
    assert told in str(raised.value)


def test_the_pages_examples_are_configs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/engines.md").read_text()
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.S)]
    beginning, rounded, gpus, first, asked, rubric, prompted, named, second = found
    parts = {"workflow": "solver_verifier", "environment": "math", "algorithm": "drmas"}
    frozen = {"policy": "judge", "trainable": False}
    pair = {"team": {"solver": {"policy": "solver"}, "verifier": frozen}}
    validate(load(write(tmp_path / "beginning.yaml", beginning | parts | pair)))
    judged = load(write(tmp_path / "judge.yaml", first | parts))
    validate(judged)
    assert judged.get_engine("judge").extra == {
        "reasoning_effort": "low",
        "top_p": None,
        "seed": None,
    }
    validate(load(write(tmp_path / "asked.yaml", asked | {"algorithm": "drmas"})))
    judge = {"policies": {"judge": {"base": "tiny:data_science"}}}
    monkeypatch.chdir(tmp_path)
    Path("analyst.md").write_text("What counts.")
    validate(load(write(tmp_path / "rubric.yaml", {"extends": "data_science"} | judge | rubric)))
    answer_judge = {"policies": {"judge": {"base": "tiny:math"}}}
    validate(load(write(tmp_path / "prompted.yaml", {"extends": "math"} | answer_judge | prompted)))
    code = re.findall(r"```python\n(.*?)```", page, re.S)[0]
    (tmp_path / "polite.py").write_text(code)
    asked["rewards"] = {f"{tmp_path}/{key}": value for key, value in named["rewards"].items()}
    validate(load(write(tmp_path / "named.yaml", asked | {"algorithm": "drmas"})))
    alone = {"team": {"solver": {"policy": "small"}}, "workflow": "single"}
    validate(load(write(tmp_path / "small.yaml", second | parts | alone)))
    small = {"policies": {"small": {"base": "tiny:math"}}}
    of_two_gpus = load(write(tmp_path / "gpus.yaml", parts | alone | small | gpus))
    assert engine_devices(of_two_gpus, "small", auto="cuda:0") == [["cuda:1", "cuda:2"]]
    half = load(write(tmp_path / "half.yaml", parts | alone | small | rounded))
    validate(half)
    assert (half.sampling_dtype("small"), half.learner.dtype) == ("bfloat16", "float32")


def test_beside_a_server_a_run_is_not_deterministic(model_folder, tmp_path):
    config = config_of(model_folder, tmp_path)
    validate(config)
    assert not config.deterministic
    assert config.takes_text("b")
    assert not config.takes_text("a")
