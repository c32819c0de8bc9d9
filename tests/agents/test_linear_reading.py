"""What a model says is read in time that grows with its length, whatever it says.

Each text is read at two lengths, the second of them eight times the first. That may cost 24 times
the processor time: far more than a reader needs that looks at each character a bounded number of
times, and far less than the 64 times of one that looks at it once for every other.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from rolecall.core.tags import extract_code, find_tag, thinking, visible
from rolecall.core.types import Turn
from rolecall.environments.games.environment import BRACKETS
from rolecall.environments.llm.environment import SCORE
from rolecall.environments.tool_use.environment import is_same_answer
from rolecall.grading.math.answers import extract
from rolecall.grading.math.tidy import MOST_CHARS, tidy
from rolecall.grading.qa import f1
from rolecall.grading.submissions import read_table
from rolecall.grading.tabular import canonical
from rolecall.retrieval.rendering import TAG
from rolecall.rewards import mrlm, mrlm_debate
from rolecall.rewards.coach import arithmetic, reading
from rolecall.tools.call_parsing import Call, answers, read_calls
from rolecall.workflows.planner_workers import parse_subtasks, readable
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

MEASURABLE_S = 2e-3  # of processor time: shorter ones say nothing
MOST_CHARACTERS = 32_000  # of the shorter text
GROWTH, MOST_COST = 8, 24
TRIES = 4  # the fastest of which counts: a machine may be busy with something else


def said(text: str) -> Turn:
    return Turn(
        id="e/0", task="x", episode="e", agent="a", policy="p", path=(0,), text=text, finish="stop"
    )


READERS: dict[str, Callable[[str], object]] = {
    "fenced code": extract_code,
    "calls in code": lambda text: read_calls(said(text), "code"),
    "calls in tags": lambda text: read_calls(said(text), "tags"),
    "calls of a template": lambda text: read_calls(said(text), "native"),
    "results": lambda text: answers([(Call("f"), text)], "tags"),
    "a tag": lambda text: find_tag(text, "verify"),
    "thinking": lambda text: (thinking(text), visible(text)),
    "subtasks": lambda text: (parse_subtasks(said(text)), readable(said(text))),
    "a box": extract,
    "an answer without a box": lambda text: extract(text, form="any"),
    "a value": lambda text: is_same_answer(text, ["12", "Emma"]),
    "a number": mrlm.number,
    "a tidy answer": lambda text: tidy(text[:MOST_CHARS]),
    "words in common": lambda text: f1(text, ["Emma"]),
    "an argument": lambda text: mrlm_debate.score_argument(text, "The topic of debate"),
    "arithmetic": arithmetic.steps,
    "a coach's verdict": lambda text: reading.read(text, None, ground_truth=True),
    "a coach's number": lambda text: reading.read(
        f"PROCESS_SCORE: {text}", None, ground_truth=False
    ),
    "a move": BRACKETS.findall,
    "a frozen model's score": SCORE.findall,
    "marks in documents": TAG.findall,
    "an id": canonical,
    "a submission": lambda text: read_table(text.encode()),
}

# Each is a beginning and what is repeated behind it, such as beginnings without an end.
REPEATED = [
    ("", "```python\n"), ("", "```py\nx\n"), ("```python\n", "``` \n\n"), ("```python", " "),
    ("", "<tool_call>"), ("", "<tool_call></tool_call>"), ("<tool_call>", "<function=a>"),
    ("<tool_call>", "<parameter=a>"), ("<tool_call><function=a>", "<parameter=a>\n"),
    ("<tool_call><function=a>", "</parameter>"), ("<tool_call><function=a", "=a"),
    ("<tool_call>", "["), ("<tool_call>", '{"a":'), ("[", '{"name": "a"},'), ("", "[TOOL_CALLS]"),
    ("", "<verify>"), ("", "</verify>"), ("", "<verify></verify>"), ("", "<think>"),
    ("", "</think>"), ("", "<"), ("", "</"), ("", "<a"),
    ("", "<subtask>"), ("", "</subtask>"), ("", "<use_mcp_tool>"), ("", "<arguments>"),
    ("", "<use_mcp_tool><arguments>"), ("<use_mcp_tool><arguments>", "</arguments>"),
    ("", "\\boxed"), ("", "\\boxed{"), ("", "\\boxed{} "), ("", "{"), ("", "}"), ("", "\\"),
    ("", "answer "), ("", "answer:"), ("", "answer is "), ("answer:", "\n"), ("answer", " "),
    ("", "####"), ("", "#### \n"), ("", "$"), ("", "1"), ("", "1,"), ("", "1/"), ("", "-1."),
    ("", "1 "), ("", "1.1"), ("", " "), ("", "\n"), ("", "\t "), ("1", " \n"), ("", "\\text{1}"),
    ("", "\\text{"), ("\\text{", "1"), ("\\text{", " "), ("", " \\text{and}"), ("", "^{"),
    ("", " ^ "), ("", "^\\circ"), ("", "\\frac{1}{"), ("", "\\frac{"), ("", "(("), ("", "[["),
    ("", "[a"), ("", "a,"), ("", "= "), ("", "1 = "), ("", "1 + "), ("x=", "x"), ("x_", "1"),
    ("", "<score>"), ("<score>", "1"), ("<score>", " "), ("<score>1", " "), ("", "so. "),
    ("5", " "), ("5", "*"), ("5/", " "), ("5 /10", "_"), ("", "PROCESS_SCORE"), ("", "**"),
    ("PROCESS_SCORE: 5", " "), ("```json", "\n"), ("```", "\n```"), ("", "```\n"), ("", "> \n"),
    ("", '"'), ("", ",\n"), ('a\n"', '""'), ("", "0"), ("1.", "0"), ("", "yes. "), ("", "the "),
    ("", "√"), ("√(", "x"), ("", "√("), ("", "½"), ("", "²"), ("1", "个"), ("1", "个 "), ("", "1("),
    ("1(", "a"), ("1(", "abcd "), ("0.", "1\\overline{"), ("0.\\overline{", "1"), ("1", "\\pi"),
    ("1", "^2"), ("1", "\\frac11"), ("1 ", "per "), ("- ", "```\n"), ("", "- "),
    ("```py\n", "  ```\n"),
]  # fmt: skip
ENDS = ("", "x", "\\", "</function></tool_call>")


@pytest.mark.parametrize("end", leave_to_evidence(ENDS, keep=["x"]))
@pytest.mark.parametrize("name", READERS)
def test_the_work_of_reading_grows_with_the_length(name, end):
    read = READERS[name]
    for start, part in REPEATED:

        def text(length: int, start: str = start, part: str = part) -> str:
            return start + part * (length // len(part)) + end

        length = MOST_CHARACTERS // 8
        while (took := _seconds(read, text(length))) < MEASURABLE_S:
            if length >= MOST_CHARACTERS:
                break
            length *= 2
        if took < MEASURABLE_S:
            continue  # of so long a text: it is quick enough, and too quick to compare
        for _ in range(TRIES):
            longer = _seconds(read, text(GROWTH * length))
            if longer < MOST_COST * took:
                break
            took = max(took, _seconds(read, text(length)))
        assert longer < MOST_COST * took, f"{start!r} and {part!r} repeated, then {end!r}"


def _seconds(read: Callable[[str], object], text: str) -> float:
    """Of the processor's time, which other processes do not take; what it raises is its answer.

    Without the garbage collector, which would look through all that the tests have loaded.
    """
    gc.disable()
    started = time.thread_time()
    with suppress(ValueError):
        read(text)
    took = time.thread_time() - started
    gc.enable()
    return took
