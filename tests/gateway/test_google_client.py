"""Google's own client, unmodified, asks the agents of an episode."""

from __future__ import annotations

import pytest
from google import genai
from google.genai import errors, types

from tests.gateway.doors import address_of, continues, play_program
from tests.layouts import LAYOUTS, tokenizer_of

QWEN = tokenizer_of(LAYOUTS["qwen"])
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def play_google(says, program, **options):
    """Play an episode whose program gets Google's client."""

    async def run(client, session):
        google = genai.Client(
            api_key=session.key, http_options=types.HttpOptions(base_url=address_of(client))
        )
        async with google.aio as mine:
            await program(mine)

    return play_program(QWEN, says, run, **options)


def test_a_chat_whose_tools_the_client_calls_keeps_the_sampled_tokens():
    async def program(client):
        config = types.GenerateContentConfig(system_instruction="You add.", tools=[add])
        chat = client.chats.create(model="solver", config=config)
        first = await chat.send_message("2 + 2 and 1 + 1?")
        assert first.text == "4 and 2."
        assert (await chat.send_message("Sure?")).text == "Yes."

    both = f"Both.\n{CALL}\n{CALL.replace('2', '1')}"
    first, second, third = play_google([both, "4 and 2.", "Yes."], program).turns
    assert continues(second, first)
    assert continues(third, second)
    shown = QWEN.decode(second.prompt)
    assert "You add." in shown
    assert "Add two numbers." in shown


def test_streams_candidates_and_counts():
    async def program(client):
        stream = await client.models.generate_content_stream(model="solver", contents="4?")
        assert "".join([chunk.text async for chunk in stream]) == "four"
        config = types.GenerateContentConfig(candidate_count=2, response_logprobs=True)
        reply = await client.models.generate_content(model="solver", contents="4?", config=config)
        said = [candidate.content.parts[0].text for candidate in reply.candidates]
        assert sorted(said) == ["4", "5"]
        token = reply.candidates[0].logprobs_result.chosen_candidates[0]
        assert (token.token, token.log_probability <= 0) == (said[0], True)
        counted = await client.models.count_tokens(model="solver", contents="4?")
        assert counted.total_tokens == reply.usage_metadata.prompt_token_count

    assert len(play_google(["four", "4", "5"], program).turns) == 3


def test_thoughts_stops_and_forms():
    async def program(client):
        config = types.GenerateContentConfig(stop_sequences=["!"], max_output_tokens=150)
        reply = await client.models.generate_content(model="solver", contents="4?", config=config)
        thought, said = reply.candidates[0].content.parts
        assert (thought.thought, thought.text, said.text) == (True, "Hm.", "Four")
        schema = types.Schema(
            type=types.Type.OBJECT,
            properties={"n": types.Schema(type=types.Type.INTEGER)},
            required=["n"],
        )
        typed = types.GenerateContentConfig(
            response_mime_type="application/json", response_schema=schema
        )
        for _ in range(2):
            await client.models.generate_content(model="solver", contents="4?", config=typed)
        cut = types.GenerateContentConfig(max_output_tokens=2)
        reply = await client.models.generate_content(model="solver", contents="4?", config=cut)
        assert reply.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS

    says = ["<think>Hm.</think>\n\nFour!", '{"n": 4}', "{}", "a long one"]
    assert [turn.valid for turn in play_google(says, program).turns] == [True, True, False, True]


def test_errors_have_the_form_that_the_client_reads():
    async def program(client):
        ask = client.models.generate_content
        with pytest.raises(errors.ClientError) as raised:
            await ask(model="gemini", contents="4?")
        assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")
        image = types.Part.from_bytes(data=b"x", mime_type="image/png")
        with pytest.raises(errors.ClientError, match="it holds data"):
            await ask(model="solver", contents=[image])
        config = types.GenerateContentConfig(tools=[types.Tool(google_search=types.GoogleSearch())])
        with pytest.raises(errors.ClientError, match="googleSearch"):
            await ask(model="solver", contents="4?", config=config)
        config = types.GenerateContentConfig(candidate_count=17)
        with pytest.raises(errors.ClientError, match="17 replies"):
            await ask(model="solver", contents="4?", config=config)
        with pytest.raises(errors.ClientError, match="no method 'batchEmbedContents'"):
            await client.models.embed_content(model="solver", contents="4?")
        listed = [model.name async for model in await client.models.list()]
        assert listed == ["models/solver", "models/verifier"]

    assert play_google([], program, names=("solver", "verifier")).turns == []
