"""Anthropic's own client, unmodified, asks the agents of an episode."""

from __future__ import annotations

import anthropic
import pytest
from anthropic import AsyncAnthropic

from rolecall.core.interfaces.engine import ContextFullError
from rolecall.engines.scripted import ScriptedEngine
from tests.gateway.doors import address_of, continues, play_program, user
from tests.layouts import LAYOUTS, tokenizer_of

QWEN = tokenizer_of(LAYOUTS["qwen"])
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'


def play_anthropic(says, program, **options):
    """Play an episode whose program gets Anthropic's client, and call options that suit it."""

    async def run(client, session):
        address = address_of(client)
        async with AsyncAnthropic(base_url=address, api_key=session.key, max_retries=0) as mine:
            await program(mine, {"model": "solver", "max_tokens": 200})

    return play_program(QWEN, says, run, **options)


def test_blocks_that_come_back_keep_the_sampled_tokens():
    async def program(client, options):
        options |= {"system": "You add.", "tools": [ADD]}
        messages = [user("2 + 2 and 1 + 1?")]
        first = await client.messages.create(messages=messages, **options)
        assert first.stop_reason == "tool_use"
        said, *calls = first.content
        assert (said.text, [call.input for call in calls]) == (
            "Both.",
            [{"a": 2, "b": 2}, {"a": 1, "b": 1}],
        )
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"result {number}"}
            for number, call in enumerate(calls)
        ]
        messages += [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
        ]
        second = await client.messages.create(messages=messages, **options)
        assert (second.content[0].text, second.stop_reason) == ("4 and 2.", "end_turn")
        messages += [{"role": "assistant", "content": "4 and 2."}, user("Sure?")]
        counted = await client.messages.count_tokens(
            messages=messages, model="solver", system="You add.", tools=[ADD]
        )
        third = await client.messages.create(messages=messages, **options)
        assert counted.input_tokens == third.usage.input_tokens

    both = f"Both.\n{CALL}\n{CALL.replace('2', '1')}"
    first, second, third = play_anthropic([both, "4 and 2.", "Yes."], program).turns
    assert continues(second, first)
    assert continues(third, second)
    shown = QWEN.decode(second.prompt)
    assert shown.index("You add.") < shown.index("result 0") < shown.index("result 1")


def test_a_stream_holds_what_the_whole_message_holds():
    async def program(client, options):
        async with client.messages.stream(messages=[user("?")], tools=[ADD], **options) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(texts) == "Yes."
        thought, said, call = final.content
        assert (thought.thinking, said.text) == ("Hm.", "Yes.")
        assert (call.name, call.input) == ("add", {"a": 2, "b": 2})
        assert final.stop_reason == "tool_use"
        assert final.usage.output_tokens > 0
        messages = [user("?"), {"role": "assistant", "content": final.content}]
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id}]}
        )
        await client.messages.create(messages=messages, tools=[ADD], **options)

    said = f"<think>Hm.</think>\n\nYes.\n{CALL}"
    first, second = play_anthropic([said, "4"], program).turns
    assert continues(second, first)


def test_a_stop_sequence_is_named():
    async def program(client, options):
        reply = await client.messages.create(
            messages=[user("4?")], stop_sequences=["no", "Observation:"], **options
        )
        assert reply.content[0].text == "I look. "
        assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "Observation:")
        cut = await client.messages.create(messages=[user("4?")], **options | {"max_tokens": 2})
        assert cut.stop_reason == "max_tokens"

    assert len(play_anthropic(["I look. Observation: no", "a long one"], program).turns) == 2


def test_errors_are_those_that_the_client_knows():
    class Full(ScriptedEngine):
        async def generate(self, request):
            raise ContextFullError("the prompt has 9 tokens and the context 8")

    async def program(client, options):
        create = client.messages.create
        image = {"type": "image", "source": {"type": "url", "url": "http://h/x.png"}}
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0: .*image"):
            await create(messages=[{"role": "user", "content": [image]}], **options)
        tool = {"type": "bash_20250124", "name": "bash"}
        with pytest.raises(anthropic.BadRequestError, match="bash_20250124"):
            await create(messages=[user("4?")], tools=[tool], **options)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: the prompt has 9"):
            await create(messages=[user("4?")], **options)
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await client.with_options(api_key="other").messages.create(
                messages=[user("4?")], **options
            )
        assert raised.value.body["error"]["type"] == "authentication_error"
        with pytest.raises(anthropic.NotFoundError, match="solver, verifier"):
            await create(messages=[user("4?")], **options | {"model": "claude"})
        assert [model.id async for model in client.models.list()] == ["solver", "verifier"]

    engine = Full(QWEN, lambda request: "")
    names = ("solver", "verifier")
    assert play_anthropic([], program, engine=engine, names=names).turns == []


def test_demanded_calls_and_formats_are_checked():
    async def program(client, options):
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}, {"type": "none"}):
            await client.messages.create(
                messages=[user("4?")], tools=[ADD], tool_choice=choice, **options
            )
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        format = {"type": "json_schema", "schema": schema}
        for _ in range(2):
            await client.messages.create(
                messages=[user("4?")], output_config={"format": format}, **options
            )

    says = ["four", "four", "four", '{"n": 4}', "{}"]
    turns = play_anthropic(says, program).turns
    assert [turn.valid for turn in turns] == [False, False, True, True, False]
    assert "add" not in QWEN.decode(turns[2].prompt)
