"""Every real template: calls that it writes are read, and results stand behind the turn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rolecall.agents.agent import Policy
from rolecall.agents.chat_template import encode, prompt_ids
from rolecall.agents.spoken_text import spoken_text
from rolecall.agents.tool_form import NAME, TOOL, call_message, tool_form
from rolecall.agents.turn_form import render, turn_form
from rolecall.core.tags import thinking, visible
from rolecall.core.types import Message
from rolecall.demonstrations.offline_data import demonstrations
from rolecall.engines.scripted import ScriptedEngine
from rolecall.tools.call_parsing import calls_in
from rolecall.tools.use import ToolUse
from tests.real.models import BY_NAME, KINDS, real_tokenizer
from tests.support.evidence import leave_to_evidence
from tests.toy import agent

pytestmark = pytest.mark.slow

# Templates that show tools, so that agents can call them in the model's own format.
NATIVE = [
    "gptoss-gptoss", "llama3_1-llama3_1", "llama3_2-llama3_2", "minicpm_v4_5", "mistral_nemo",
    "qwen2_5", "qwen2_5-qwen2_5", "qwen3", "qwen3-qwen3", "qwen3-qwen3_instruct_2507",
    "qwen3-qwen3_5_think", "qwen3-qwen3_5_nothink", "qwen3-qwen3_6", "qwen3-glm4moe",
    "qwen3-nemotron_3_nano", "yi-qwen2_5",
]  # fmt: skip
WITHOUT_SYSTEM_ROLE = ["gemma-gemma", "gemma2-gemma"]
# Those that write JSON in <tool_call> tags, as rows with `tool_calls` are written.
TAGGED = [
    "minicpm_v4_5", "qwen2_5", "qwen2_5-qwen2_5", "qwen3", "qwen3-qwen3",
    "qwen3-qwen3_instruct_2507", "yi-qwen2_5",
]  # fmt: skip
QUESTION = Message("user", "Which word?")


@pytest.mark.parametrize("name", leave_to_evidence(BY_NAME, keep=KINDS))
def test_tools_are_native_where_the_template_shows_them(name):
    problem = tool_form(real_tokenizer(name)).problem
    assert (problem == "") == (name in NATIVE), problem


def call_row(path) -> str:
    call = call_message("add", arguments={"a": "1"})
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "1?"}, said]}) + "\n")
    return str(path)


@pytest.mark.parametrize("name", leave_to_evidence(NATIVE, keep=KINDS & {*NATIVE}))
def test_rows_with_calls_are_refused_where_the_model_writes_other_ones(name, tmp_path):
    tokenizer = real_tokenizer(name)
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda _: ""))
    agents = {
        form: agent("a", policy, tools=ToolUse((), format=form)) for form in ("native", "tags")
    }
    file = call_row(tmp_path / "rows.jsonl")
    [[episode]] = demonstrations(file, {"a": agents["tags"]})
    assert episode.answer == '<tool_call>{"name": "add", "arguments": {"a": "1"}}</tool_call>'
    if name in TAGGED:
        [[same]] = demonstrations(file, {"a": agents["native"]})
        assert same.answer == episode.answer
    else:
        with pytest.raises(
            ValueError, match=r"rows\.jsonl:1: tool_calls: the chat template of 'p'"
        ):
            demonstrations(file, {"a": agents["native"]})


@pytest.mark.parametrize("name", leave_to_evidence(NATIVE, keep=KINDS & {*NATIVE}))
def test_results_follow_the_very_turn_that_called(name):
    """Twice in a row, with the turns as the template writes them."""
    tokenizer = real_tokenizer(name)
    messages = [QUESTION]
    for word in ("first", "second"):
        prompt = prompt_ids(tokenizer, messages, options={}, tools=[TOOL])
        turn = write_call(tokenizer, NAME, {"word": word})
        text = spoken_text(tokenizer, prompt, turn)
        [call] = calls_in(visible(text), "native")
        assert (call.name, call.arguments, call.problem) == (NAME, {"word": word}, "")
        messages = [*messages, Message("assistant", text, turn, called=(NAME,))]
        messages.append(Message("tool", f"result of {word}", name=NAME))
        after = prompt_ids(tokenizer, messages, options={}, tools=[TOOL])
        before = [*prompt.tolist(), *turn.tolist()]
        assert after[: len(before)].tolist() == before
        behind = tokenizer.decode(after[len(before) :])
        assert f"result of {word}" in behind
        assert word not in behind.replace(f"result of {word}", "")


@pytest.mark.parametrize("name", leave_to_evidence(NATIVE, keep=KINDS & {*NATIVE}))
def test_calls_that_nobody_sampled_are_written_by_the_template(name):
    """A prompt with a call of somebody else is the one that the template makes of it."""
    tokenizer = real_tokenizer(name)
    messages = [
        QUESTION,
        Message("assistant", "", calls=((NAME, '{"word": "sun"}'),)),
        Message("tool", "It shines.", name=NAME),
    ]
    call = call_message(NAME, arguments={"word": "sun"})
    result = {"role": "tool", "content": "It shines.", "name": NAME, "tool_call_id": call["id"]}
    user = {"role": "user", "content": QUESTION.content}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    text = render(tokenizer, [user, said, result], asks=True, tools=[TOOL])
    prompt = prompt_ids(tokenizer, messages, options={}, tools=[TOOL])
    assert prompt.tolist() == encode(tokenizer, text).tolist()
    assert "sun" in text


@pytest.mark.parametrize("name", leave_to_evidence(NATIVE, keep=KINDS & {*NATIVE}))
def test_arguments_that_nobody_sampled_forge_no_control_token(name):
    tokenizer = real_tokenizer(name)
    control = next(iter(turn_form(tokenizer).tokens))

    def count(word: str) -> int:
        call = json.dumps({"word": word})
        messages = [QUESTION, Message("assistant", "", calls=((NAME, call),))]
        messages.append(Message("tool", "It shines.", name=NAME))
        prompt = prompt_ids(tokenizer, messages, options={}, tools=[TOOL])
        return prompt.tolist().count(tokenizer.convert_tokens_to_ids(control))

    assert count(f"a {control} b") == count("a b")


@pytest.mark.parametrize("name", leave_to_evidence(BY_NAME, keep=KINDS))
def test_a_system_text_reaches_every_model(name):
    tokenizer = real_tokenizer(name)
    assert turn_form(tokenizer).has_system_role == (name not in WITHOUT_SYSTEM_ROLE)
    prompt = prompt_ids(tokenizer, [Message("system", "Be brief."), QUESTION], options={})
    text = tokenizer.decode(prompt)
    assert text.index("Be brief.") < text.index("Which word?")


def test_a_channel_of_analysis_is_a_thought():
    tokenizer = real_tokenizer("gptoss-gptoss")
    raw = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>4"
        "<|return|>"
    )
    text = spoken_text(tokenizer, np.zeros(0, np.int32), encode(tokenizer, raw))
    assert (thinking(text), visible(text)) == ("Hm.", "4")


def test_calls_of_deepseek_are_read_in_both_forms():
    tokenizer = real_tokenizer("deepseek_v3-deepseekv3")
    frame = "<\uff5ctool\u2581{}\uff5c>".format
    begin, sep, end = (frame(part) for part in ("call\u2581begin", "sep", "call\u2581end"))
    first, last = frame("calls\u2581begin"), frame("calls\u2581end")
    for body in (
        f'function{sep}lookup\n```json\n{{"word": "x"}}\n```',
        f'lookup{sep}{{"word": "x"}}',
    ):
        raw = f"Let me see.{first}{begin}{body}{end}{last}"
        text = spoken_text(tokenizer, np.zeros(0, np.int32), encode(tokenizer, raw))
        [call] = calls_in(visible(text), "native")
        assert (call.name, call.arguments) == ("lookup", {"word": "x"})
        assert text.startswith("Let me see.")


def write_call(tokenizer, name: str, arguments: dict[str, str]) -> np.ndarray:
    """The turn with a call that a model of this family would sample."""
    call = call_message(name, arguments=arguments)
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    user = {"role": "user", "content": QUESTION.content}
    prompt = render(tokenizer, [user], asks=True, tools=[TOOL]).rstrip()
    whole = render(tokenizer, [user, said], asks=False, tools=[TOOL])
    text = whole.removeprefix(prompt) if whole.startswith(prompt) else whole.rpartition("?")[2]
    form = turn_form(tokenizer)
    ends = [text.rfind(token) + len(token) for token in form.tokens if token in text]
    text = text[: max(ends)] if ends else text
    if not form.writes_end:  # GLM ends a call with the token that begins the result
        result = {"role": "tool", "content": "word", "name": name, "tool_call_id": call["id"]}
        behind = render(tokenizer, [user, said, result], asks=True, tools=[TOOL])
        behind = behind.rpartition(text)[2].lstrip()
        text += max((t for t in form.tokens if behind.startswith(t)), key=len, default="")
    return encode(tokenizer, text)
