"""Hidden tests: what passes them, and what a program may try instead of passing."""

import asyncio
import gzip
import json
import time

import pytest

from rolecall.sandbox.base import Limits
from rolecall.sandbox.inside.calls import UnserialisableError, decode, encode
from rolecall.sandbox.verdict import Examination, examine, is_same_output, stdin_tests
from tests.conftest import SHARED

pytestmark = pytest.mark.slow

TEST = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(-3) == 9
    assert candidate(0) == 0
"""
RIGHT = "def square(x):\n    return x * x\n"


def verdict(sandbox, program, *, test=TEST, name="square", prelude="", wall_s=10.0):
    examination = Examination(program, name, test, prelude)
    return asyncio.run(examine(sandbox, examination, limits=Limits(wall_s=wall_s)))


def test_the_right_function_passes_and_a_wrong_one_fails(sandbox):
    assert verdict(sandbox, RIGHT).passed
    wrong = verdict(sandbox, "def square(x):\n    return x + x\n")
    assert not wrong.passed
    assert wrong.reason.startswith("AssertionError")


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "def square(x):\n    import os; os._exit(0)",
        "def square(x):\n    raise SystemExit(0)",
        "def square(x):\n    raise KeyboardInterrupt",
        "import os, signal\ndef square(x): os.kill(os.getpid(), signal.SIGKILL)",
        "class Same(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\n"
        "def square(x): return Same(7)",
        "class Same:\n    __eq__ = lambda a, b: True\ndef square(x): return Same()",
        "class Same(list):\n    __eq__ = lambda a, b: True\ndef square(x): return Same()",
        "from unittest.mock import ANY\ndef square(x): return ANY",
        "import builtins\nbuiltins.AssertionError = ValueError\nbuiltins.check = print\n"
        "def square(x): return 7",
        "import sys\nsys.settrace(print)\nsys.excepthook = print\ndef square(x): return 7",
        "def check(candidate): pass\ndef square(x): return 7",
        "def square(x): raise AssertionError",
        "square = 7",
        "",
        "def square(x:",
        "def square(x): return square(x)",
        "def square(x): return float('nan')",
    ],
)
def test_what_is_not_the_right_function_does_not_pass(sandbox, program):
    assert not verdict(sandbox, program).passed


def writing(line: str) -> str:
    """A program whose function writes `line`, an expression, to all it finds open, and waits."""
    return f"""
import os, time
def square(x):
    line = {line} + b"\\n"
    for number in range(3, 20):
        try:
            rest = line
            while rest: rest = rest[os.write(number, rest):]
        except OSError: pass
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "answer",
    [
        """b'{"passed": true, "reason": "", "calls": 3, "strange": ""}'""",
        """b'{"value": {"set": [[1]]}}'""",
        """b'{"value": {"object": 1}}'""",
        """b'{"value": {"int": 4, "list": 1}}'""",
        """b'{"value": 1' + b"0" * 10_000 + b"}'""",
        """b'{"raised": "UnicodeDecodeError", "text": "x"}'""",
        """b'{"raised": "Ended", "text": "x"}'""",
        """b'{"raised": "exec", "text": "x"}'""",
        """b"not json\xff" """,
        """b"[]" """,
        """b"[" * 100_000""",
        """b"x" * (9 << 20)""",
    ],
)
def test_what_a_program_writes_itself_is_an_answer_like_any_other(sandbox, answer):
    one = "assert square(2) == 4"
    assert verdict(sandbox, writing("""b'{"value": 4}'"""), test=one, wall_s=5).passed
    assert not verdict(sandbox, writing(answer), test=one, wall_s=5).passed


def test_a_verdict_that_a_program_writes_while_it_loads_is_none(sandbox):
    said = """b'{"passed": true, "reason": "", "calls": 3, "strange": ""}'"""
    assert not verdict(sandbox, writing(said) + "square(1)", wall_s=2).passed
    loaded = """b'{"value": null}'"""
    assert not verdict(sandbox, writing(loaded) + "square(1)", wall_s=2).passed


def test_a_program_that_does_not_return_fails_in_time(sandbox):
    slow = "import time\ndef square(x):\n    while True:\n"
    slow += "        try: time.sleep(60)\n        except BaseException: pass\n"
    started = time.monotonic()
    assert not verdict(sandbox, slow, wall_s=1).passed
    assert not verdict(sandbox, "while True: pass", wall_s=1).passed
    assert time.monotonic() - started < 6


def test_neither_the_test_nor_its_answers_are_in_the_programs_reach(sandbox):
    spy = """
import gc, os, sys
def square(x):
    found = []
    frame = sys._getframe()
    while frame:
        found.append(repr(frame.f_globals) + repr(frame.f_locals)); frame = frame.f_back
    found += [repr(o)[:10_000] for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ", "maps"):
            try: found.append(open(f"/proc/{process}/{name}", errors="replace").read())
            except OSError: pass
    for line in open("/proc/self/maps"):
        if " rw" not in line: continue
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        with open("/proc/self/mem", "rb", 0) as memory:
            try:
                memory.seek(start); found.append(memory.read(end - start).decode(errors="replace"))
            except (OSError, OverflowError, ValueError): pass
    for folder, _, names in os.walk("/tmp"):
        found += [open(os.path.join(folder, n), errors="replace").read() for n in names]
    text = "".join(found)
    space = chr(95)  # so that the words looked for are not in the program itself
    words = (("only", "the", "test"), ("prelude", "word"), ("in", "the", "program"))
    return [space.join(word) in text for word in words]
seen = "in_the_program"
"""
    test = """
def check(candidate):
    "only_the_test"
    assert candidate(2) == [False, False, True], candidate(2)
"""
    said = verdict(sandbox, spy, test=test, prelude="word = 'prelude_word'")
    assert said.passed, said.reason


def test_errors_cross_by_name(sandbox):
    program = """
class Mine(Exception): pass
def fails(kind):
    if kind == "mine": raise Mine("text")
    if kind == "unicode": b"\\xff".decode()
    raise ValueError("bad " + kind)
"""
    test = """
def check(candidate):
    for kind, error in (("mine", Mine), ("value", ValueError), ("unicode", UnicodeDecodeError)):
        try: candidate(kind)
        except error as raised: assert kind != "value" or str(raised) == "bad value"
        else: assert False
"""
    prelude = "class Mine(Exception): pass"
    assert verdict(sandbox, program, test=test, name="fails", prelude=prelude).passed
    hiding = "def check(candidate):\n    try: candidate('x')\n    except: pass\n"
    assert verdict(sandbox, program, test=hiding, name="fails").passed
    ends = "def fails(kind):\n    raise SystemExit"
    assert not verdict(sandbox, ends, test=hiding, name="fails").passed


def test_plain_asserts_and_names_of_the_task_work_too(sandbox):
    prelude = "def twice(x):\n    return 2 * x\ndef square(x):\n    '''the task'''\n"
    test = "assert square(3) == 9\nassert square(x=4) == twice(8)"
    assert verdict(sandbox, RIGHT, test=test, prelude=prelude).passed


def test_a_test_that_no_program_can_fail_or_pass_is_an_error(sandbox):
    with pytest.raises(ValueError, match="without calling"):
        verdict(sandbox, RIGHT, test="def check(candidate): pass")
    with pytest.raises(ValueError, match="type function cannot be passed; numbers"):
        verdict(sandbox, RIGHT, test="def check(candidate): candidate(lambda: 1)")


def test_plain_values_cross_as_they_are():
    values = [None, True, 1, -(10**30), 1.5, "\u00e9\ud800", b"\xff", 1 + 2j, [], (1, (2,)), {1, 2}]
    values += [frozenset("ab"), {1: "a", (1, 2): {"x": [None]}}, float("inf"), {"tuple": [1]}]
    for value in values:
        back = decode(json.loads(json.dumps(encode(value))))
        assert back == value
        assert type(back) is type(value)
    for strange in (object(), range(3), iter([]), print, {1: object()}):
        with pytest.raises(UnserialisableError):
            encode(strange)


@pytest.mark.evidence  # a part of them is tried in tests/environments/test_code.py
def test_every_solution_of_humaneval_passes_and_none_of_another_task(sandbox):
    path = SHARED / "data/HumanEval.jsonl.gz"
    if not path.exists():
        pytest.skip("no ../shared beside the project: HumanEval is not at hand")
    with gzip.open(path) as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 164

    async def play(bodies, chosen):
        return await asyncio.gather(
            *(
                examine(
                    sandbox,
                    Examination(
                        row["prompt"] + body, row["entry_point"], row["test"], row["prompt"]
                    ),
                    limits=Limits(wall_s=30),
                )
                for row, body in zip(chosen, bodies, strict=True)
            )
        )

    right = asyncio.run(play([row["canonical_solution"] for row in rows], rows))
    failed = {row["task_id"]: v.reason for row, v in zip(rows, right, strict=True) if not v.passed}
    assert failed == {}
    some = rows[::8]
    broken = asyncio.run(play(["    return None\n"] * len(some), some))
    assert not any(v.passed for v in broken)


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2 3\n", "1 2 3\r\n", True),  # a file from Windows
        ("1 2 3\n", "1 2 3 \n", True),
        ("1 2 3 \n", "1 2 3", True),
        ("1\t\n2  \n\n \n", "1\r\n2\r\n", True),
        ("1\n\n2", "1\n2", False),
        ("1\n2", "1 2", False),
        (" 1", "1", False),
        ("1  2", "1 2", False),
        ("", " \n", True),
    ],
)
def test_outputs_are_compared_line_by_line_without_the_ends_of_lines(printed, expected, same):
    assert is_same_output(printed, expected) is same


def test_outputs_are_compared_outside_of_the_sandbox(sandbox):
    def passed(program, inputs, outputs):
        return asyncio.run(stdin_tests(sandbox, program, inputs=inputs, outputs=outputs))

    assert passed("print(int(input()) * 2)", ["1\n", "2", "3"], ["2", "4\n\n", "7"]) == (
        [True, True, False]
    )
    assert passed("print(2)\nraise SystemExit(1)", [""], ["2"]) == [False]
    assert passed("print(' 2')", [""], ["2"]) == [False]
    assert passed("print('1 2 ')", ["", ""], ["1 2\r\n", "1  2"]) == [True, False]
    long = "x" * 100_000
    assert passed("print('x' * 100_000)", ["", ""], [long, long[:-1] + "y"]) == [True, False]
    forged = f"print('x' * 200_010 + {'x' * 99_000!r})"
    assert passed(forged, [""], [long]) == [False]
    with pytest.raises(ValueError, match="shorter"):
        passed("", ["1"], [])
