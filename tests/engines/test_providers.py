"""Anthropic's and Google's engines by their SDKs: what agents and chat models send and are told."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.agents.agent import Policy
from rolecall.agents.policy_chat import PolicyChat
from rolecall.config.served import AnthropicEngineConfig, GoogleEngineConfig
from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.interfaces.engine import ContextFullError, Question, Sampling
from rolecall.core.types import Message
from rolecall.engines.served.anthropic import AnthropicEngine
from rolecall.engines.served.google import GoogleEngine
from rolecall.engines.served.provider import BudgetSpentError
from rolecall.runtime.spending import Prices
from tests.engines.servers import Asked, Told, claude, gemini, serving

pytestmark = pytest.mark.slow

KEY = "secret-key-1"
SAID = [
    Message("system", "Be brief."), Message("user", "2+2?"),
    Message("assistant", "<think>hm</think>four"), Message("user", "sure?"),
]  # fmt: skip
PRICES = {"judge": Prices(2.0, 0.5, 10.0)}


def made(kind: str, url: str, **options):
    given = {"url": url, "model": "m", "timeout_s": 5.0, "pause_s": 0.01} | options
    if kind == "anthropic":
        section, engine = AnthropicEngineConfig(**given), AnthropicEngine
    else:
        section, engine = GoogleEngineConfig(**given), GoogleEngine
    return engine(section, policies=["judge"], key=KEY, prices=PRICES)


def ask(kind: str, rule, *questions: Question, **options):
    """-> (the answers to the last question, the server)"""

    async def go(url):
        engine = made(kind, url, **options)
        try:
            for question in questions or [asked()]:
                answers = await engine.answer(question)
            return answers
        finally:
            await engine.close()

    with serving(rule) as server:
        return asyncio.run(go(server.url)), server


def asked(n: int = 1, **sampling) -> Question:
    return Question("q", "judge", SAID, Sampling(**sampling), seed=7, n=n)


SAYS = {"anthropic": claude, "google": gemini}
LIMIT = {"anthropic": "max_tokens", "google": "MAX_TOKENS"}
REFUSAL = {"anthropic": "refusal", "google": "SAFETY"}
KINDS = sorted(SAYS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_its_text_with_all_tokens_and_what_they_cost(kind):
    [answer], _ = ask(kind, lambda a: SAYS[kind]("yes"))
    assert (answer.text, answer.finish, answer.refused) == ("yes", "stop", False)
    assert answer.usage == {
        "prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 10, "reasoning_tokens": 3,
        "usd": pytest.approx((60 * 2.0 + 40 * 0.5 + 10 * 10.0) / 1e6),
    }  # fmt: skip
    [answer], _ = ask(kind, lambda a: SAYS[kind]("ye", reason=LIMIT[kind]))
    assert (answer.text, answer.finish) == ("ye", "length")
    [answer], _ = ask(kind, lambda a: SAYS[kind]("No.", reason=REFUSAL[kind]))
    assert answer.refused


def test_claude_is_sent_the_dialogue_without_thoughts_and_its_system_text_apart():
    _, server = ask("anthropic", lambda a: claude("yes"), asked(temperature=0.5, max_tokens=9))
    assert server.asked[0].path == "/v1/messages"
    assert KEY in str(server.asked[0].headers)
    assert server.asked[0].body == {
        "model": "m", "max_tokens": 9, "temperature": 0.5, "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "four"},
            {"role": "user", "content": "sure?"},
        ],
    }  # fmt: skip
    _, server = ask("anthropic", lambda a: claude("yes"))
    assert "temperature" not in server.asked[0].body


def test_gemini_is_sent_the_dialogue_without_thoughts_and_its_system_text_apart():
    _, server = ask("google", lambda a: gemini("yes"), asked(temperature=0.5, max_tokens=9))
    body = server.asked[0].body
    assert server.asked[0].path.endswith("/models/m:generateContent")
    assert server.asked[0].headers["x-goog-api-key"] == KEY
    assert [one["role"] for one in body["contents"]] == ["user", "model", "user"]
    assert body["contents"][1]["parts"] == [{"text": "four"}]
    assert body["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert body["generationConfig"] == {"temperature": 0.5, "maxOutputTokens": 9}


def test_gemini_is_told_how_long_it_may_think():
    _, server = ask("google", lambda a: gemini("yes"), thinking_budget=512)
    thinking = server.asked[0].body["generationConfig"]["thinkingConfig"]
    assert list(thinking.values()) == [512]  # the server takes its name in either spelling


@pytest.mark.parametrize("kind", KINDS)
def test_several_answers_are_single_requests_and_what_passes_is_asked_again(kind):
    def rule(a: Asked):
        return Told(529, {"error": "busy"}) if a.number == 2 else SAYS[kind]("yes")

    answers, server = ask(kind, rule, asked(n=3))
    assert [answer.text for answer in answers] == ["yes"] * 3
    assert len(server.asked) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "message", "error", "told"),
    [
        (401, f"bad {KEY}", RunEndingError, r"refuses the key: .*\(key\)"),
        (404, "no model m", RunEndingError, "knows no such model or path: .*no model m"),
        (400, "prompt is too long: 9 tokens", ContextFullError, "has no room for the prompt"),
        (413, "too large", ContextFullError, "has no room for the prompt"),
    ],
)
def test_a_refusal_means_the_same_as_of_any_server(kind, status, message, error, told):
    body = {"error": {"message": message, "code": status}}
    with pytest.raises(error, match=told) as raised:
        ask(kind, lambda a: Told(status, body))
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_spent_budget_ends_the_run_before_the_next_request(kind):
    with pytest.raises(BudgetSpentError, match=r"policies.judge.engine: the budget of 0\.0003 USD"):
        ask(kind, lambda a: SAYS[kind]("yes"), *[asked()] * 9, budget_usd=0.0003)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_hangs_costs_the_deadline(kind):
    hangs = lambda a: asyncio.run(asyncio.sleep(1.0)) or SAYS[kind]("late")  # noqa: E731
    with pytest.raises(InfrastructureError, match=r"no result within 1\.5 s; .*within 0\.4 s"):
        ask(kind, hangs, timeout_s=1.5, request_s=0.4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_model_leaves_the_sampling_to_the_provider_unless_told(kind):
    schema = {"type": "object", "properties": {}, "additionalProperties": False}

    async def go(url):
        model = PolicyChat(
            "judge", model="m", identity="", is_local=False, temperature=None, max_tokens=99,
            prices=PRICES["judge"],
        )  # fmt: skip
        engine = made(kind, url)
        with pytest.raises(ValueError, match="cannot reply yet"):
            await model.reply(SAID, seed=1)
        model.policy = Policy("judge", None, engine)
        try:
            return await model.reply(SAID, seed=1, schema=schema, max_tokens=5)
        finally:
            await engine.close()

    with serving(lambda a: SAYS[kind]("yes")) as server:
        reply = asyncio.run(go(server.url))
    assert (reply.text, reply.model, reply.truncated, reply.reasoning_tokens) == (
        "yes", "m", False, 3
    )  # fmt: skip
    assert reply.usd == pytest.approx(0.00024)
    body = server.asked[0].body
    sent = body if kind == "anthropic" else body["generationConfig"]
    assert "temperature" not in sent
    assert 5 in (sent.get("max_tokens"), sent.get("maxOutputTokens"))
    form = sent.get("output_config", {}).get("format", {})
    assert schema in (sent.get("responseJsonSchema"), form.get("schema"))
