"""What counts as a call, in each format."""

from __future__ import annotations

import pytest

from rolecall.core.types import Turn
from rolecall.tools.call_parsing import Call, answers, cut, describe_tools, read_calls
from rolecall.tools.functions import tool


def said(text: str, finish: str = "stop") -> Turn:
    return Turn(
        id="e/0", task="x", episode="e", agent="a", policy="p", path=(0,), text=text, finish=finish
    )


ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
WANTED = Call("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"I add. <tool_call>{ADD}</tool_call>", [WANTED]),
        (f"<tool_call>\n{ADD}\n</tool_call>\n<tool_call>{ADD}</tool_call> done", [WANTED, WANTED]),
        ('<tool_call>{"name": "add", "parameters": {"a": 1, "b": 2}}</tool_call>', [WANTED]),
        (
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
            [WANTED],
        ),
        ('<tool_call>{"name": "now"}</tool_call>', [Call("now")]),
        (
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n"
            "</parameter>\n</function>\n</tool_call>",
            [Call("add", {"a": "1", "b": "2"})],
        ),
        (f"<think><tool_call>{ADD}</tool_call></think>No call.", []),
        (f"<tool_call>{ADD}</tool_call></think>No call.", []),
        ("No call.", []),
    ],
)
@pytest.mark.parametrize("format", ["tags", "native"])
def test_tags_hold_calls(text, expected, format):
    assert read_calls(said(text), format) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{add}</tool_call>", "not JSON"),
        ("<tool_call>3</tool_call>", "a call is an object"),
        ('<tool_call>{"name": 3}</tool_call>', "a call is an object"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "no JSON object"),
        ('<tool_call>{"name": "add", "arguments": "1 2"}</tool_call>', "no JSON object"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
        ('<tool_call>{"name": "add", "arguments": {"a": ' + "[" * 90 + "]" * 90 + "}}</tool_call>",
         "nested more than 64 deep"),
        ('<tool_call>{"name": "add", "arguments": {"a": ' + "1" * 5000 + "}}</tool_call>",
         "not JSON that can be read: Exceeds the limit"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "NaN and Infinity"),
        ('<tool_call>{"name": "add", "arguments": {"a\\udead": 1}}</tool_call>', "surrogate pair"),
        ('<tool_call>{"name": "' + "a" * 201 + '"}</tool_call>', "at most 200 characters"),
        ("<tool_call><function=add</tool_call>", "<function=NAME> without </function>"),
        (f"<tool_call>{ADD}", "without </tool_call>"),
        (f"{ADD}</tool_call>", "without <tool_call>"),
        (f"</tool_call>{ADD}<tool_call>", "without <tool_call>"),
        (f"<tool_call><tool_call>{ADD}</tool_call>", "without </tool_call>"),
    ],
)  # fmt: skip
def test_malformed_calls_say_what_is_wrong(text, problem):
    [call] = read_calls(said(text), "tags")
    assert problem in call.problem


def test_calls_before_a_malformed_one_are_kept():
    first, second = read_calls(said(f"<tool_call>{ADD}</tool_call><tool_call>{ADD}"), "tags")
    assert first == WANTED
    assert second.problem


def test_a_turn_that_was_cut_makes_no_calls():
    assert read_calls(said(f"<tool_call>{ADD}</tool_call> and so", finish="length"), "tags") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "add", "parameters": {"a": 1, "b": 2}}', [WANTED]),
        (f"<|python_tag|>{ADD}", [WANTED]),
        (f"[TOOL_CALLS][{ADD}, {ADD}]", [WANTED, WANTED]),
        (f"[{ADD}]", [WANTED]),
        ('{"answer": 3}', []),
        ("[1, 2]", []),
        ("[]", []),
        ("[" * 100_000, []),
        ("1" * 5000, []),
        ("[" + "1" * 5000 + "]", []),
        ("{1, 2}", []),
        (f"It is {ADD}", []),
    ],
)
def test_bare_json_is_a_call_in_native_format_only(text, expected):
    assert read_calls(said(text), "native") == expected
    assert read_calls(said(text), "tags") == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Run:\n```python\nprint(1)\n```", "print(1)\n"),
        ("```py\na\n```\nor\n```python\nb\nc\n```\ndone", "b\nc\n"),
        ("```python\nx = '```'\n```", "x = '```'\n"),
        ("```\nprint(1)\n```", None),
        ("```json\n{}\n```", None),
        ("```python\nprint(1)", None),
        ("<think>\n```python\nprint(1)\n```\n</think>\nno", None),
    ],
)
def test_the_last_python_block_is_code(text, code):
    expected = [] if code is None else [Call("python", {"code": code})]
    assert read_calls(said(text), "code") == expected


def test_results_answer_in_the_form_of_the_calls():
    results = [(Call("f"), "1"), (Call("g"), "<tool_call>x</tool_response></output>")]
    native = answers(results, "native")
    assert [(m.role, m.name, m.content) for m in native] == [
        ("tool", "f", "1"), ("tool", "g", "<tool_call>x</tool_response></output>"),
    ]  # fmt: skip
    [tags] = answers(results, "tags")
    assert tags.role == "user"
    assert tags.content == (
        "<tool_response>\n1\n</tool_response>\n"
        "<tool_response>\n< tool_call>x< /tool_response></output>\n</tool_response>"
    )
    [code] = answers(results[1:], "code")
    assert code.content == "<output>\n< tool_call>x</tool_response>< /output>\n</output>"


def test_long_results_keep_both_ends():
    assert cut("abc", 3) == "abc"
    assert cut("a" * 60 + "b" * 60, 100) == f"{'a' * 50}\n[20 characters left out]\n{'b' * 50}"


def test_agents_are_told_their_tools():
    @tool
    def weather(city: str, days: int = 1) -> str:
        """The weather of a city.

        In words."""
        return city * days

    told = describe_tools([weather], "tags")
    assert "weather(city: string, days?: integer): The weather of a city. In words." in told
    assert '<tool_call>{"name": NAME' in told
    assert describe_tools([weather], "native") == ""
    assert weather.schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"],
    }


def test_a_tool_must_say_what_it_does():
    with pytest.raises(ValueError, match="has no docstring"):

        @tool
        def silent() -> str:
            return ""
