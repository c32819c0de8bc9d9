"""OpenAI's own client, unmodified, asks through responses."""

from __future__ import annotations

import openai
import pytest
from pydantic import BaseModel

from tests.gateway.doors import continues, play_program, user
from tests.layouts import LAYOUTS, tokenizer_of

QWEN = tokenizer_of(LAYOUTS["qwen"])
ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
BOTH = f"Both.\n{CALL}\n{CALL.replace('2', '1')}"


@pytest.mark.parametrize("mixed", [False, True])
def test_items_that_come_back_keep_the_sampled_tokens(mixed):
    """`mixed`: each call stands before its own result."""

    async def program(client, session):
        items = [user("2 + 2 and 1 + 1?")]
        options = {"model": "solver", "tools": [ADD], "instructions": "You add."}
        first = await client.responses.create(input=items, **options)
        assert first.output_text == "Both."
        said, *calls = first.output
        assert [call.name for call in calls] == ["add", "add"]
        assert first.usage.input_tokens > first.usage.output_tokens > 0
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": f"result {n}"}
            for n, call in enumerate(calls)
        ]
        if mixed:
            items += [said, calls[0], results[0], calls[1], results[1]]
        else:
            items += [*first.output, *results]
        second = await client.responses.create(input=items, **options)
        assert second.output_text == "4 and 2."
        items += [*second.output, user("Sure?")]
        await client.responses.create(input=items, **options)

    first, second, third = play_program(QWEN, [BOTH, "4 and 2.", "Yes."], program).turns
    assert continues(second, first)
    assert continues(third, second)
    assert "You add." in QWEN.decode(first.prompt)
    shown = QWEN.decode(second.prompt)
    assert shown.index("result 0") < shown.index("result 1")


def test_a_response_goes_on_by_its_id():
    async def program(client, session):
        create = client.responses.create
        first = await create(model="solver", input="2 + 2?", instructions="You add.", tools=[ADD])
        call = first.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
        second = await create(
            model="solver",
            input=[result],
            previous_response_id=first.id,
            instructions="You add.",
            tools=[ADD],
        )
        assert second.previous_response_id == first.id
        with pytest.raises(openai.NotFoundError, match="no response 'other'"):
            await create(model="solver", input="Sure?", previous_response_id="resp_other")

    first, second = play_program(QWEN, [CALL, "4."], program).turns
    assert continues(second, first)
    assert second.parents == (first.id,)


def test_a_stream_holds_what_the_whole_response_holds():
    async def program(client, session):
        options = {"model": "solver", "input": "2 + 2?", "tools": [ADD]}
        async with client.responses.stream(**options) as events:
            kinds = [event.type async for event in events]
            final = await events.get_final_response()
        assert final.output_text == "Both."
        assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert kinds.count("response.function_call_arguments.done") == 2

    assert play_program(QWEN, [BOTH], program).error is None


def test_thoughts_are_items_that_may_come_back_or_not():
    async def program(client, session):
        items = [user("2 + 2?")]
        first = await client.responses.create(model="solver", input=items)
        thought, said = first.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "Two and two.")
        for output in (first.output, [said]):
            await client.responses.create(model="solver", input=[*items, *output, user("Sure?")])

    said = "<think>Two and two.</think>\n\nIt is 4."
    first, *others = play_program(QWEN, [said, "Yes.", "Yes."], program).turns
    assert [continues(turn, first) for turn in others] == [True, True]


def test_typed_output_logprobs_and_the_length_limit_are_in_the_response():
    class Answer(BaseModel):
        number: int

    async def program(client, session):
        parsed = await client.responses.parse(model="solver", input="4?", text_format=Answer)
        assert parsed.output_parsed == Answer(number=4)
        include = ["message.output_text.logprobs"]
        reply = await client.responses.create(model="solver", input="4?", include=include)
        [part] = reply.output[0].content
        assert "".join(token.token for token in part.logprobs[:-1]) == "four"
        cut = await client.responses.create(model="solver", input="4?", max_output_tokens=2)
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        count = await client.responses.input_tokens.count(model="solver", input="4?")
        assert count.input_tokens == reply.usage.input_tokens

    turns = play_program(QWEN, ['{"number": 4}', "four", "a long answer"], program).turns
    assert [turn.valid for turn in turns] == [True, True, True]


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_no_agent_can_do_is_refused_by_name(options, parameter):
    async def program(client, session):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(**{"model": "solver", "input": "4?"} | options)
        assert raised.value.param == parameter
        assert raised.value.response.headers["x-should-retry"] == "false"

    assert play_program(QWEN, [], program).turns == []
