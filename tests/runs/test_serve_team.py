"""A trained team answers the unmodified clients of OpenAI, Anthropic and Google as one model."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import anthropic
import httpx
import openai
import pytest
import uvicorn
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import rolecall
from rolecall.gateway.dialects.request import ForeignMessage, ForeignRequest
from rolecall.gateway.routes import describe_refusal, make_app
from rolecall.runs.serve_team import PREFIXES, ServedTeam, write_question
from rolecall.serve.binding import settings
from rolecall.serve.guard import Rules
from tests.toy import command, relay_config

pytestmark = pytest.mark.slow
QUESTION = [{"role": "user", "content": "abc"}]


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "run"
    rolecall.train(relay_config(model_folder), output=folder, trainer={"steps": 1})
    return folder


@asynccontextmanager
async def serving(run):
    """The address at which the team of a run answers."""
    with rolecall.Team.load(run) as team:
        served = ServedTeam(team, name="relay")
        rules = Rules(token="key", describe=describe_refusal)
        app = make_app(lambda request: served, rules, PREFIXES)
        server = uvicorn.Server(settings(app, log_config=None, lifespan="off"))
        listener = socket.create_server(("127.0.0.1", 0))
        task = asyncio.ensure_future(server.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


def test_clients_of_openai_get_answers_of_the_team(run):
    async def main():
        async with serving(run) as address:
            client = AsyncOpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0)
            create = client.chat.completions.create
            assert [model.id for model in (await client.models.list()).data] == ["relay"]
            two = await create(model="relay", messages=QUESTION, n=2, seed=7)
            again = await create(model="any", messages=QUESTION, n=2, seed=7, temperature=1.0)
            texts = [choice.message.content for choice in two.choices]
            assert texts == [choice.message.content for choice in again.choices]
            assert two.usage.completion_tokens > 0
            shown = await create(
                model="relay", messages=QUESTION, extra_body={"show_conversation": True}
            )
            message = shown.choices[0].message
            assert message.reasoning_content.startswith("[left]\n")
            assert "\n\n[last]\n" in message.reasoning_content
            events = await create(model="relay", messages=QUESTION, stream=True, seed=7)
            streamed = [event.choices[0].delta.content or "" async for event in events]
            assert "".join(streamed) == texts[0]
            response = await client.responses.create(
                model="relay", input="abc", extra_body={"show_conversation": True}
            )
            assert [item.type for item in response.output] == ["reasoning", "message"]
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="other").models.list()

    asyncio.run(main())


def test_clients_of_anthropic_and_google_get_answers_of_the_team(run):
    async def main():
        async with serving(run) as address:
            client = AsyncAnthropic(base_url=address, api_key="key", max_retries=0)
            options = {"model": "relay", "max_tokens": 50, "messages": QUESTION}
            reply = await client.messages.create(**options, extra_body={"show_conversation": True})
            assert [block.type for block in reply.content] == ["thinking", "text"]
            counted = await client.messages.count_tokens(model="relay", messages=QUESTION)
            assert counted.input_tokens > 0
            tool = {"name": "add", "input_schema": {"type": "object"}}
            with pytest.raises(anthropic.BadRequestError, match="have their own tools"):
                await client.messages.create(**options, tools=[tool])
            body = {"contents": [{"role": "user", "parts": [{"text": "abc"}]}]}
            async with httpx.AsyncClient(headers={"x-goog-api-key": "key"}, timeout=60) as http:
                answer = await http.post(
                    f"{address}/v1beta/models/relay:generateContent", json=body
                )
            [candidate] = answer.json()["candidates"]
            assert candidate["finishReason"] in ("STOP", "MAX_TOKENS")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"messages": [*QUESTION, {"role": "assistant", "content": "d"}]}, "messages"),
    ],
)
def test_what_a_team_cannot_do_is_refused_by_name(run, options, parameter):
    async def main():
        async with serving(run) as address:
            client = AsyncOpenAI(base_url=f"{address}/v1", api_key="key")
            with pytest.raises(openai.BadRequestError) as raised:
                await client.chat.completions.create(
                    **{"model": "relay", "messages": QUESTION} | options
                )
            assert raised.value.param == parameter

    asyncio.run(main())


def test_a_conversation_is_one_question():
    messages = (
        ForeignMessage("user", "2 + 2?"),
        ForeignMessage("assistant", "4"),
        ForeignMessage("user", "Sure?"),
    )
    alone = ForeignRequest("m", messages[-1:], {})
    assert write_question(alone) == "Sure?"
    whole = ForeignRequest("m", messages, {}, instructions="Be short.")
    assert write_question(whole) == "Be short.\n\n[user]\n2 + 2?\n\n[assistant]\n4\n\n[user]\nSure?"


def test_wrong_arguments_are_one_line(run, capsys):
    assert command("serve", "team", "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err
    assert command("serve", "team", run, "--host", "0.0.0.0") == 2
    assert "--token-env" in capsys.readouterr().err
