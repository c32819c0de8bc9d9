"""The coach that asks no model: arithmetic is computed, code is run."""

import asyncio

import pytest

from rolecall.core.types import Turn
from rolecall.rewards.coach.checked_steps import StepChecker
from rolecall.rewards.coach.scores import CoachError
from tests.sandbox.places import working_sandbox

pytestmark = pytest.mark.slow


def judged(text: str, *, calls=None, sandbox=None):
    turn = Turn("0:t:0/0", "t", "0:t:0", "solver", "p", (0,), text=text)
    if calls is not None:
        turn.tools.calls = calls
    return asyncio.run(StepChecker(sandbox).judge(turn))


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def test_the_score_is_the_share_of_right_steps_and_the_wrong_ones_are_named():
    verdict = judged("3 * 4 = 12, then 12 + 5 = 18")
    assert verdict.score == 5.0
    assert verdict.reasoning == "1 of 2 checks are right; wrong: 12 + 5 = 18"


def test_a_text_with_nothing_to_check_has_no_score():
    with pytest.raises(CoachError, match="nothing to check"):
        judged("The answer is 42.")


def test_code_that_a_tool_ran_is_judged_by_its_end():
    ended = {"name": "python", "arguments": {}, "result": "7"}
    broken = ended | {"result": "Traceback: no x\n[exit status 1]"}
    hung = ended | {"result": "[stopped after 5 s]"}
    unknown = ended | {"result": "Error: there is no tool", "problem": "unknown"}
    assert judged(fenced("print(7)"), calls=[ended]).score == 10
    for call in (broken, hung, unknown):
        assert judged("", calls=[call]).score == 0
    assert judged("2+2=4", calls=[ended, broken]).score == pytest.approx(20 / 3)


def test_code_that_nobody_ran_is_run():
    sandbox = working_sandbox()
    assert judged(fenced("x = 3\nprint(x)"), sandbox=sandbox).score == 10
    assert judged(fenced("print(undefined)"), sandbox=sandbox).score == 0
    assert judged("[exit status 1]\n" + fenced("print(1)"), sandbox=sandbox).score == 10


def test_a_program_that_prints_a_good_end_and_fails_is_wrong():
    said = {"name": "python", "arguments": {}, "result": "fine\n[no output]\n[exit status 3]"}
    assert judged("", calls=[said]).score == 0
