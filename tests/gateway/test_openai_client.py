"""OpenAI's own client, unmodified, asks the agents of an episode."""

from __future__ import annotations

import asyncio
import gc
import json

import httpx
import openai
import pytest

from rolecall.core.interfaces.engine import ContextFullError
from rolecall.engines.scripted import ScriptedEngine
from rolecall.gateway.dialects.request import RequestError, program_tool
from rolecall.gateway.session import SessionLimits
from tests.gateway.doors import address_of, begins, continues, play_program, user
from tests.layouts import LAYOUTS, tokenizer_of
from tests.real.models import real_tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Say how it is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
QWEN = tokenizer_of(LAYOUTS["qwen"])
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
        "strict": True,
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'


def test_a_second_turn_begins_with_the_tokens_of_the_first():
    async def program(client, session):
        messages = [{"role": "system", "content": "You add."}, user("2 + 2?")]
        first = await client.chat.completions.create(model="solver", messages=messages)
        said = first.choices[0].message
        assert (said.content, first.choices[0].finish_reason) == ("4, I think.", "stop")
        assert first.usage.completion_tokens > 0
        messages += [said.model_dump(), user("Sure?")]
        second = await client.chat.completions.create(model="solver", messages=messages)
        assert second.choices[0].message.content == "Yes."

    episode = play_program(QWEN, ["4, I think.", "Yes."], program)
    assert episode.error is None
    first, second = episode.turns
    assert continues(second, first)
    assert second.parents == (first.id,)
    assert [turn.index for turn in episode.turns] == [0, 1]
    assert "You add." in QWEN.decode(first.prompt)


def test_a_stream_is_what_the_whole_reply_is():
    async def program(client, session):
        events = await client.chat.completions.create(
            model="solver",
            messages=[user("2 + 2?")],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in events]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "It is 4."
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage.total_tokens > 0
        async with client.chat.completions.stream(
            model="solver", messages=[user("2 + 2?")], tools=[ADD]
        ) as helper:
            final = await helper.get_final_completion()
        call = final.choices[0].message.tool_calls[0].function
        assert (call.name, call.parsed_arguments) == ("add", {"a": 2, "b": 2})

    assert play_program(QWEN, ["It is 4.", CALL], program).error is None


def test_calls_of_tools_and_their_results_keep_the_sampled_tokens():
    async def program(client, session):
        messages = [user("2 + 2 and 1 + 1?")]
        first = await client.chat.completions.create(model="solver", messages=messages, tools=[ADD])
        assert first.choices[0].finish_reason == "tool_calls"
        calls = first.choices[0].message.tool_calls
        assert len({call.id for call in calls}) == 2
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": f"result {number}"}
            for number, call in enumerate(calls)
        ]
        await client.chat.completions.create(model="solver", messages=messages, tools=[ADD])

    both = f"Both.\n{CALL}\n{CALL.replace('2', '1')}"
    first, second = play_program(QWEN, [both, "4 and 2."], program).turns
    assert continues(second, first)
    shown = QWEN.decode(second.prompt)
    assert "add" in QWEN.decode(first.prompt)
    assert shown.index("result 0") < shown.index("result 1")
    assert all(turn.valid for turn in (first, second))


def test_a_call_that_cannot_be_read_is_left_to_the_program_as_text():
    async def program(client, session):
        reply = await client.chat.completions.create(
            model="solver", messages=[user("2 + 2?")], tools=[ADD]
        )
        assert reply.choices[0].message.content == "<tool_call>{add}</tool_call>"
        assert reply.choices[0].finish_reason == "stop"

    assert play_program(QWEN, ["<tool_call>{add}</tool_call>"], program).error is None


def test_forms_that_are_demanded_and_not_kept_make_a_turn_invalid():
    async def program(client, session):
        for options in (
            {"tools": [ADD], "tool_choice": "required"},
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_object"}},
        ):
            await client.chat.completions.create(model="solver", messages=[user("4?")], **options)

    episode = play_program(QWEN, ["four", "four", '{"four": 4}'], program, invalid_penalty=0.5)
    assert [turn.valid for turn in episode.turns] == [False, False, True]
    assert [turn.rewards for turn in episode.turns] == [{"invalid": -0.5}, {"invalid": -0.5}, {}]


def test_the_model_names_the_agent_and_a_team_of_one_needs_no_name():
    async def ask_two(client, session):
        for name in ("verifier", "solver"):
            await client.chat.completions.create(model=name, messages=[user("4?")])
        with pytest.raises(openai.NotFoundError, match="solver, verifier") as raised:
            await client.chat.completions.create(model="gpt-5", messages=[user("4?")])
        assert raised.value.code == "model_not_found"
        listed = await client.models.list()
        assert [model.id for model in listed.data] == ["solver", "verifier"]

    episode = play_program(QWEN, ["a", "b"], ask_two, names=("solver", "verifier"))
    assert [turn.agent for turn in episode.turns] == ["verifier", "solver"]

    async def ask_one(client, session):
        reply = await client.chat.completions.create(model="gpt-5", messages=[user("4?")])
        assert reply.model == "gpt-5"
        url = str(client.base_url).replace("/v1/", "/agents/solver/v1/")
        other = client.with_options(base_url=url)
        await other.chat.completions.create(model="solver", messages=[user("4?")])

    assert [turn.agent for turn in play_program(QWEN, ["a", "b"], ask_one).turns] == ["solver"] * 2


def test_stop_texts_end_the_words_and_stay_in_the_tokens():
    async def program(client, session):
        messages = [user("4?")]
        reply = await client.chat.completions.create(
            model="solver", messages=messages, stop=["Observation:"], max_tokens=150
        )
        assert reply.choices[0].message.content == "I look. "
        messages += [reply.choices[0].message.model_dump(), user("Go on.")]
        await client.chat.completions.create(model="solver", messages=messages)

    first, second = play_program(QWEN, ["I look. Observation: no", "b"], program).turns
    assert continues(second, first)


def test_what_a_program_adds_to_a_reply_follows_the_sampled_tokens():
    async def program(client, session):
        messages = [user("4?")]
        await client.chat.completions.create(model="solver", messages=messages)
        added = "It is four, I say.\nCalling tools:\n[<|im_end|>]"
        messages += [{"role": "assistant", "content": added}, user("Go on.")]
        await client.chat.completions.create(model="solver", messages=messages)

    first, second = play_program(QWEN, ["It is four, I say.", "b"], program).turns
    said = [*first.prompt, *first.tokens[:-1]]  # without its end
    assert begins(second.prompt, said)
    after = QWEN.decode(second.prompt[len(said) :])
    assert after.startswith("\nCalling tools:\n[< |im_end|>]<|im_end|>")


def test_words_that_nobody_sampled_are_foreign_text():
    async def program(client, session):
        messages = [user("4?"), {"role": "assistant", "content": "five"}, user("Sure?")]
        await client.chat.completions.create(model="solver", messages=messages)

    [turn] = play_program(QWEN, ["b"], program).turns
    assert turn.parents == ()
    assert "five" in QWEN.decode(turn.prompt)


def test_calls_that_nobody_sampled_stand_in_the_form_of_the_template():
    """Arguments that are no object cannot, and stand in tags as they are."""
    qwen = real_tokenizer("qwen3-qwen3")

    async def program(client, session):
        for arguments in ('{"city": "Oslo"}', '{"city": '):
            function = {"name": "weather", "arguments": arguments}
            call = {"id": "call_x", "type": "function", "function": function}
            messages = [
                user("How is Oslo?"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_x", "content": "Cold."},
            ]
            await client.chat.completions.create(model="solver", messages=messages, tools=[WEATHER])

    native, broken = play_program(qwen, ["b", "c"], program).turns
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    whole = qwen.apply_chat_template(
        [
            user("How is Oslo?"),
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "Cold."},
        ],
        tools=[WEATHER],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert qwen.decode(native.prompt) == whole
    assert '"arguments": {"city":}' in qwen.decode(broken.prompt)
    assert native.parents == broken.parents == ()


def test_a_marked_retry_finds_the_turn_and_an_equal_request_is_another_one():
    async def program(client, session):
        body = {"model": "solver", "messages": [user("4?")]}
        retry = {"x-stainless-retry-count": "1"}
        first = await client.chat.completions.create(**body)
        again = await client.chat.completions.create(**body, extra_headers=retry)
        other = await client.chat.completions.create(**body)
        texts = [reply.choices[0].message.content for reply in (first, again, other)]
        assert texts == ["one", "one", "two"]

    assert len(play_program(QWEN, ["one", "two"], program).turns) == 2


def test_several_replies_to_one_request_are_turns_of_their_own():
    async def program(client, session):
        messages = [user("4?")]
        reply = await client.chat.completions.create(
            model="solver", messages=messages, n=3, logprobs=True
        )
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        assert sorted(choice.message.content for choice in reply.choices) == ["a", "b", "c"]
        for choice in reply.choices:
            assert choice.logprobs.content[0].token == choice.message.content
            assert bytes(choice.logprobs.content[0].bytes).decode() == choice.message.content
        chosen = reply.choices[1].message
        messages += [chosen.model_dump(), user("Go on.")]
        await client.chat.completions.create(model="solver", messages=messages)
        with pytest.raises(openai.BadRequestError, match="has had its 5 turns"):
            await client.chat.completions.create(model="solver", messages=messages, n=2)
        session.chosen = chosen.content

    limits = SessionLimits(turns=5)
    sessions = []

    async def noting(client, session):
        sessions.append(session)
        await program(client, session)

    *first, last = play_program(QWEN, ["a", "b", "c", "d"], noting, limits=limits).turns
    assert len({turn.id for turn in first}) == 3
    [parent] = last.parents
    assert {turn.id: turn.text for turn in first}[parent] == sessions[0].chosen
    assert len({reply.turn.id for reply in sessions[0].replies}) == 4


def test_an_answer_that_does_not_fit_its_schema_makes_a_turn_invalid():
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def form(schema):
        named = {"name": "answer", "schema": schema, "strict": True}
        return {"type": "json_schema", "json_schema": named}

    async def program(client, session):
        create = client.chat.completions.create
        for _ in range(3):
            await create(model="solver", messages=[user("4?")], response_format=form(number))
        wrong = form({"type": "whole number"})
        with pytest.raises(openai.BadRequestError, match="no JSON schema"):
            await create(model="solver", messages=[user("4?")], response_format=wrong)

    turns = play_program(QWEN, ['{"n": 4}', '{"n": "four"}', "4"], program).turns
    assert sorted((turn.text, turn.valid) for turn in turns) == [
        ("4", False),
        ('{"n": "four"}', False),
        ('{"n": 4}', True),
    ]


def test_an_episode_can_be_named_in_the_address():
    async def program(client, session):
        address = address_of(client)
        named = client.with_options(
            base_url=f"{address}/rollouts/{session.key}/agents/solver/v1", api_key="unset"
        )
        reply = await named.chat.completions.create(model="any", messages=[user("4?")])
        assert reply.choices[0].message.content == "a"
        unknown = client.with_options(base_url=f"{address}/rollouts/other/v1")
        with pytest.raises(openai.NotFoundError, match="no episode"):
            await unknown.chat.completions.create(model="solver", messages=[user("4?")])
        with pytest.raises(openai.NotFoundError, match="/v1/embeddings is not answered here"):
            await client.embeddings.create(model="solver", input="4?")
        async with httpx.AsyncClient() as plain:
            answer = await plain.get(f"{address}/v1/chat/completions")
            assert (answer.status_code, "error" in answer.json()) == (405, True)

    assert len(play_program(QWEN, ["a"], program).turns) == 1


def test_a_client_that_leaves_finds_its_turn_when_it_asks_again():
    released = asyncio.Event()

    class Slow(ScriptedEngine):
        async def generate(self, request):
            await released.wait()
            return await super().generate(request)

    async def program(client, session):
        body = {"model": "solver", "messages": [user("4?")]}
        hasty = client.with_options(timeout=0.3, max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            await hasty.chat.completions.create(**body)
        released.set()
        retry = {"x-stainless-retry-count": "1"}
        reply = await client.chat.completions.create(**body, extra_headers=retry)
        assert reply.choices[0].message.content == "one"

    engine = Slow(QWEN, lambda request: "one")
    assert len(play_program(QWEN, [], program, engine=engine).turns) == 1


def test_a_body_that_is_no_request_is_an_error_of_the_program():
    async def program(client, session):
        schema = {"name": "f", "parameters": {"properties": 4}}
        tools = [{"type": "function", "function": schema}]
        for body, problem in (
            ({"messages": [user("\ud800")]}, "not JSON"),
            ({"messages": [user(float("nan"))]}, "NaN is no value of JSON"),
            ({"messages": [user(4)]}, "content is a text or a list of parts"),
            ({"messages": [user("4?")], "tools": tools}, "tool 'f' are no JSON schema"),
        ):
            with pytest.raises(openai.BadRequestError, match=problem):
                await client.post(
                    "/chat/completions",
                    cast_to=object,
                    content=json.dumps({"model": "solver"} | body).encode(),
                    options={"headers": {"Content-Type": "application/json"}},
                )

    play_program(QWEN, [], program)


def test_strange_schemas_of_a_tool_are_shown_as_any():
    strange = {"a": True, "b": [], "c": {"enum": 4}, "d": {"anyOf": "x"}, "e": {"type": "integer"}}
    tool = program_tool("f", "", {"type": "object", "properties": strange})
    assert tool.signature == "f(a?: any, b?: any, c?: any, d?: any, e?: integer): "


def test_a_request_under_way_when_the_episode_ends_is_not_to_be_repeated():
    class Endless(ScriptedEngine):
        async def generate(self, request):
            await asyncio.sleep(60)

    async def program(client, session):
        async def ask(**options):
            with pytest.raises(openai.APIStatusError) as raised:
                await client.chat.completions.create(
                    model="solver", messages=[user("4?")], **options
                )
            response = raised.value.response
            return response.status_code, response.headers["x-should-retry"]

        asking = asyncio.gather(ask(), ask(stream=True))
        await asyncio.sleep(0.5)
        await session.close()
        assert await asking == [(410, "false")] * 2

    play_program(QWEN, [], program, engine=Endless(QWEN, lambda request: ""))


def test_requests_that_failed_are_not_kept():
    class Full(ScriptedEngine):
        async def generate(self, request):
            raise ContextFullError("full")

    async def program(client, session):
        for number in range(5):
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="solver", messages=[user(f"{number}")])
        gc.collect()
        assert not [held for held in gc.get_objects() if isinstance(held, RequestError)]

    play_program(QWEN, [], program, engine=Full(QWEN, lambda request: ""))


def test_limits_and_wrong_requests_are_errors_of_the_protocol():
    async def program(client, session):
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="image_url"):
            await create(
                model="solver",
                messages=[user([{"type": "image_url", "image_url": {"url": "http://h/x.png"}}])],
            )
        for options in ({"n": 17}, {"logprobs": True, "top_logprobs": 3}):
            with pytest.raises(openai.BadRequestError) as raised:
                await create(model="solver", messages=[user("4?")], **options)
            assert raised.value.code == "unsupported_parameter"
        with pytest.raises(openai.BadRequestError, match="messages"):
            await create(model="solver", messages=[])
        async with httpx.AsyncClient(base_url=str(client.base_url)) as plain:
            body = {"model": "solver", "messages": [user("4?")]}
            wrong = {"Authorization": "Bearer other"}
            answer = await plain.post("/chat/completions", json=body, headers=wrong)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            for header in ("x-api-key", "x-goog-api-key"):
                key = {header: session.key}
                assert (await plain.get("/models", headers=key)).status_code == 200
            page = {"Authorization": f"Bearer {session.key}", "Origin": "http://evil"}
            refused = await plain.post("/chat/completions", json=body, headers=page)
            assert (refused.status_code, refused.json()["error"]["type"]) == (
                403,
                "invalid_request_error",
            )
            broken = {"Authorization": f"Bearer {session.key}", "Content-Type": "application/json"}
            text = await plain.post("/chat/completions", content=b"{", headers=broken)
            assert (text.status_code, "not JSON" in text.text) == (400, True)
        await create(model="solver", messages=[user("4?")])
        with pytest.raises(openai.BadRequestError, match="has had its 1 turns"):
            await create(model="solver", messages=[user("4?")])
        assert session.was_refused
        await session.close()
        with pytest.raises(openai.APIStatusError) as ended:
            await create(model="solver", messages=[user("4?")])
        assert ended.value.status_code == 410

    assert len(play_program(QWEN, ["a"], program, limits=SessionLimits(turns=1)).turns) == 1


def test_a_full_context_is_told_in_the_words_that_clients_know_and_counted():
    class Full(ScriptedEngine):
        async def generate(self, request):
            raise ContextFullError("the prompt has 9 tokens and the context 8")

    async def program(client, session):
        with pytest.raises(openai.BadRequestError, match="the context 8") as raised:
            await client.chat.completions.create(model="solver", messages=[user("4?")])
        assert raised.value.code == "context_length_exceeded"

    episode = play_program(QWEN, [], program, engine=Full(QWEN, lambda request: ""))
    assert episode.metrics["count/context_full"] == 1.0


def test_equal_seeds_give_equal_draws_in_whatever_order_requests_come():
    seeds: list[dict[str, int]] = []

    def note(request):
        seeds[-1][QWEN.decode(request.prompt)] = request.seed
        return "a"

    for order in ("ab", "ba"):
        seeds.append({})

        async def program(client, session, order=order):
            for letter in order:
                await client.chat.completions.create(model="solver", messages=[user(letter)])

        play_program(QWEN, note, program)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 2
