"""The maths judge: what must be equal, what must differ, and what it survives."""

# ruff: noqa: RUF001 (answers with characters that look like others)

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rolecall.grading.math.answers import extract, references
from rolecall.grading.math.equivalence import MathJudge, Verdict
from rolecall.grading.math.process import JudgeError
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
ENDLESS = "9^{9^{9^{9}}}"

EQUAL = r"""
5 == 5 | 5.0 == 5 | 5. == 5 | +5 == 5 | 033 == 33 | -0 == 0 | 142.0 == 142 | 1,000 == 1000
1{,}000 == 1000 | 1e3 == 1000 | .5 == 0.5 | 3.14159 == 3.14159
\frac{1}{2} == 0.5 | 1/2 == \frac12 | \dfrac{1}{2} == \frac{1}{2} | 2/4 == 1/2
\frac{-1}{2} == -\frac{1}{2} | -\frac{1}{2} == \frac{1}{-2} | 1\frac{1}{2} == \frac{3}{2}
10^{2} == 100 | 10^2 == 100 | 2^{10} == 1024 | 2^{-1} == \frac12 | 1.5\times10^{3} == 1500
\sqrt{8} == 2\sqrt{2} | 2\sqrt2 == \sqrt{8} | \frac{\sqrt{2}}{2} == \frac{1}{\sqrt{2}}
\pi/2 == \frac{\pi}{2} | 1 \pm \sqrt{2} == 1\pm\sqrt{2}
x^2+1 == 1+x^2 | (x+1)^2 == x^2+2x+1 | y=2x+3 == y=3+2x | x=5 == 5
(1, 2) == (1,2) | \left( 3, \frac{\pi}{2} \right) == (3,\pi/2) | [0,1) == [0, 1)
(-\infty,2] == (-\infty, 2] | \{1,2\} == \{2,1\} | 1, 2 == 2, 1
\begin{pmatrix}1&2\\3&4\end{pmatrix} == \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\begin{pmatrix} -1/3 \\ a \end{pmatrix} == \begin{pmatrix} -\frac13 \\ a \end{pmatrix}
5\text{ cm} == 5 | 5\,\text{cm} == 5\text{ cm} | \$5 == 5 | $5 == 5 | 50\% == 50 | 30^\circ == 30
1011_2 == 1011_{2} | A == (A) | \text{(A)} == A | \text{east} == east
\frac{1}{20!} == \frac{21}{21!} | \frac{52!}{50!} == 2652 | 0.1+0.2 == 0.3
2^{-200} == \frac{1}{4^{100}}
\frac{\sqrt{2}}{30!} == \frac{2}{30!\sqrt{2}} | 0.5\sqrt{2} == \frac{1}{\sqrt{2}}
1.5x == \frac{3x}{2}
e^{i\pi} == -1 | e^{2\pi i/3} == -\frac12+\frac{\sqrt3}{2}i | (1+i)^2 == 2i | x+iy == iy+x
\varnothing == \emptyset | \{\} == \emptyset | x\leqslant3 == x\le 3 | x\neq 2 == x\ne2
0.\overline{3} == 1/3 | 0.\overline{3} == \frac{1}{3} | 1.2\overline{34} == \frac{611}{495}
0.\dot{6} == 2/3
0.(142857) == \frac17 | -0.1\overline{6} == -\frac16 | 0.\overline{9} == 1
2.\bar{5}x == \frac{23x}{9}
9 (apples) == 9 | 12 (cm) == 12 | 1,000 (US dollars) == 1000 | \frac{3}{4} (pounds) == 0.75
\frac{1}{2} cup == 0.5 | 10^{-3} meters == 0.001 | 5\sqrt{3} cm == 5\sqrt3 | x = 7 hours == 7
25\pi square units == 25\pi | 37^\circ C == 37 | 20^\circ\text{F} == 20 | 50 percent == 50\%
12.5\text{ percent} == \frac18 | 5 USD == 5 | 2.5 == \frac{5}{2}
"""
UNICODE_EQUAL = r"""
（3，4） == (3,4) | ｛1，2｝ == 1,2 | １２ == 12 | －５ == -5 | ５０％ == 50\% | ５０％ == 0.5
2：3 == 2:3
3．5 == 3.5
１，０００ == 1000 | 1、2、3 == 1,2,3 | x＝4 == 4 | 7。 == 7 | ［0，1） == [0,1) | 3；4 == 3,4
√2 == \sqrt{2} | 2√13 == 2\sqrt{13} | √(x+1) == \sqrt{x+1} | ∛8 == 2 | √2/2 == \frac{\sqrt{2}}{2}
√{5} == \sqrt{5}
0.3̅ == 1/3 | 0.16̇ == 1/6 | 10²5 == 500 | √π == \sqrt{\pi} | 1+√5 == \sqrt{5}+1
½ == 0.5 | 2½ == 2.5 | -⅔ == -\frac{2}{3} | ¾x == \frac{3}{4}x | 7⁄8 == \frac{7}{8}
10⁻³ == 10^{-3} | x² == x^2 | 2¹⁰ == 1024 | 3×10⁸ == 3\times10^{8} | x⁻¹ == \frac{1}{x}
eⁿ == e^{n} | a₁₂ == a_{12}
1011₂ == 1011_2 | 2⁽ⁿ⁺¹⁾ == 2^{(n+1)}
≥3 == \geq 3 | x ≤ 5 == x\leq5 | x≠0 == x\neq 0 | ∅ == \emptyset | ∅ == \varnothing | ±2 == \pm 2
2π == 2\pi | 3α+β == \beta+3\alpha | −7 == -7 | ∞ == \infty | (−∞，2］ == (-\infty,2]
ℝ == \mathbb{R}
6÷2 == 3 | 4·5 == 20 | 2⋅3 == 6 | 30° == 30 | 45º == 45^\circ | 25℃ == 25 | 𝑥+1 == x+1
3个 == 3 | 12 厘米 == 12 | 7 яблок == 7 | 5元 == 5 | €5 == 5 | ￥20 == 20 | 3つ == 3 | x=3米 == 3
"""
DIFFERENT = r"""
5 == 6 | 5 == -5 | 0.999 == 1 | == 0 | 1,000 == 1 | 12 == 1,2 | 1e400 == 10 | 0.33 == 1/3
\frac{1}{3} == 0.3333 | 3.14 == \pi | 50 == 0.5 | 50 == 50\frac{1}{2} | 100 == 10^{3} | 25 == 5^2+1
x+1 == x-1 | 2x == 2 | xy == x+y | (1,2) == (2,1) | (1,2) == 12 | 12 == {1,2} | (0,1) == [0,1]
[0,1) == (0,1) | 1011_2 == 1011 | 1011_2 == 1011_3 | A == B
\frac{1}{20!} == \frac{1}{21!} | (\frac{1}{2})^{60} == (\frac{1}{3})^{60}
\frac{10!}{52!} == \frac{9!}{52!}
\frac{1}{20!} == 0 | 10^{-30} == 0+10^{-31} | \frac{1}{300!} == \frac{1}{301!}
\frac{x}{20!} == \frac{x}{21!}
\frac{\sqrt{2}}{20!} == \frac{\sqrt{2}}{21!} | \frac{\sqrt{2}}{300!} == \frac{\sqrt{2}}{301!}
(1,\frac{1}{20!}) == (1,\frac{1}{21!}) | x=\frac{1}{20!} == x=\frac{1}{21!} | \pi+10^{-20} == \pi
\sqrt{2} == 1.41421356 | \pi == 3.14159265 | \sqrt{2} == 1.41421356237309504880 | \pi/3 == 1.047198
e^{i\pi} == 1 | (1+i)^2 == 2 | i == 1 | i == I | 0.\overline{3} == 0.33 | 0.\overline{12} == 0.12
0.(3) == 3
5(x) == 5 | 2(ab) == 2 | 9 (million) == 9 | 5 million == 5 | \frac{1}{2}x == \frac12
\emptyset == 0 | \{0\} == \{\}
"""
UNICODE_DIFFERENT = r"""
3万 == 3 | 10³ == 103 | 10⁻³ == 10^3 | 2½ == 1 | √2 == 2 | √22 == 2\sqrt{2} | （2，1） == (1,2)
½ == 12 | x₂ == x^2
５０％ == 5 | ≥3 == \leq 3 | 3：4 == 4:3 | √2x == \sqrt{2x} | ∅ == \infty
"""


def pairs(table):
    cells = [cell for line in table.strip().splitlines() for cell in line.split("|") if line]
    found = [cell.partition("==") for cell in cells]
    return [(given.strip(), truth.strip()) for given, _, truth in found]


@pytest.fixture(scope="module")
def judge():
    shared = MathJudge()
    yield shared
    asyncio.run(shared.close())


def ask(judge, given, truth):
    return asyncio.run(judge.equal(given, truth))


@pytest.mark.parametrize(("given", "truth"), pairs(EQUAL + UNICODE_EQUAL))
def test_answers_that_mean_the_same_are_equal_in_both_directions(judge, given, truth):
    assert ask(judge, given, truth).equal
    assert ask(judge, truth, given).equal


@pytest.mark.parametrize(("given", "truth"), pairs(DIFFERENT + UNICODE_DIFFERENT))
def test_answers_that_mean_something_else_differ(judge, given, truth):
    assert not ask(judge, given, truth).equal


def test_any_accepted_reference_is_enough(judge):
    assert ask(judge, "81", "080 or 081 (both were accepted)").equal
    assert ask(judge, r"\sqrt{8}", ["3", r"2\sqrt{2}"]) == Verdict(True, "symbolic")


def test_an_answer_that_never_ends_is_not_equal_and_the_loop_stays_responsive():
    async def scenario():
        judge, ticks, began = MathJudge(), 0, time.monotonic()
        asking = asyncio.create_task(judge.equal(ENDLESS, "5"))
        while not asking.done():
            await asyncio.sleep(0.01)
            ticks += 1
        took_s = time.monotonic() - began
        after = await judge.equal(r"\sqrt{8}", r"2\sqrt{2}")
        again = await judge.equal(ENDLESS, "5")
        await judge.close()
        return await asking, took_s, ticks, after, again, judge.counts

    verdict, took_s, ticks, after, again, counts = asyncio.run(scenario())
    assert verdict == again == Verdict(False, "timeout")
    assert after == Verdict(True, "symbolic")
    assert counts == dict.fromkeys(counts, 0) | {"symbolic": 1, "timeout": 2}
    assert ticks > 50
    assert 2.0 <= took_s < 20.0


def test_an_answer_that_needs_too_much_memory_is_not_equal_and_counted():
    judge = MathJudge(time_s=20.0, memory_bytes=16 << 20)
    assert ask(judge, "(x+1)^{20000}", "3x") == Verdict(False, "memory")
    assert ask(judge, r"\sqrt{8}", r"2\sqrt{2}").equal
    assert judge.counts["memory"] == 1
    asyncio.run(judge.close())


@pytest.mark.parametrize(
    ("given", "truth"),
    [("10^{10^{10}}", "10^{10^{10}}+1"), ("100000!", "100001!"), ("2^{10^9}+x", "x")],
)
def test_exact_numbers_that_are_too_large_to_write_out_break_no_worker(judge, given, truth):
    assert ask(judge, given, truth) == Verdict(False, "symbolic")


def test_a_long_answer_is_not_equal_by_rule(judge):
    assert ask(judge, "x+" * 1000 + "1", "1") == Verdict(False, "rules")


def test_a_worker_killed_from_outside_costs_no_answer():
    async def scenario():
        judge = MathJudge(time_s=1.0)
        assert (await judge.equal("1+x", "x+1")).equal
        os.kill(judge._process.child.pid, signal.SIGKILL)  # while idle
        idle = await judge.equal("2+x", "x+2")
        asking = asyncio.create_task(judge.equal(ENDLESS, "5"))
        await asyncio.sleep(0.5)
        os.kill(judge._process.child.pid, signal.SIGKILL)  # while working
        busy = await asking
        await judge.close()
        return idle, busy

    assert asyncio.run(scenario()) == (Verdict(True, "symbolic"), Verdict(False, "timeout"))


# A worker that dies on one answer and knows no other.
FRAGILE = """
import json, sys
print(json.dumps({"verdict": "readable", "worn": False}), flush=True)
for line in sys.stdin:
    given = json.loads(line)["given"]
    if given == "x+0":
        sys.exit(3)
    verdict = "readable" if given is None else "different"
    print(json.dumps({"verdict": verdict, "worn": False}), flush=True)
"""


def test_an_answer_that_crashes_the_worker_twice_is_not_equal():
    judge = MathJudge(command=[sys.executable, "-c", FRAGILE])
    assert ask(judge, "x+0", "x") == Verdict(False, "crash")
    assert ask(judge, "x+1", "x") == Verdict(False, "symbolic")
    assert judge.counts["crash"] == 1
    asyncio.run(judge.close())


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["/nonexistent/python"], "No such file"),
        ([sys.executable, "-c", "raise ImportError('no sympy here')"], "no sympy here"),
    ],
)
def test_a_worker_that_cannot_start_is_an_error_and_not_a_wrong_answer(command, told):
    judge = MathJudge(command=command)
    with pytest.raises(JudgeError, match=told):
        ask(judge, "x+1", "1+x")
    assert ask(judge, "5", "5.0").equal
    assert sum(judge.counts.values()) == 1
    asyncio.run(judge.close())


UNREADABLE = [r"m_{\max}=n^{2}-n-1", "t(0,4]"]


@pytest.fixture(scope="module")
def impatient():
    judge = MathJudge(time_s=0.5)
    yield judge
    asyncio.run(judge.close())


AS_TEXT = [*UNREADABLE, r"\frac{1}{", ENDLESS, "x+" * 1500 + "1"]


@pytest.mark.parametrize("reference", leave_to_evidence(AS_TEXT, keep={*AS_TEXT} - {ENDLESS}))
def test_a_reference_that_no_parser_reads_is_compared_as_text(impatient, reference):
    judge, before = impatient, impatient.counts["text"]
    assert ask(judge, reference, reference).equal
    if len(reference) < judge.max_chars:
        assert ask(judge, f" {reference} ", reference).equal
    for other in ("5x", "n+1", "(0,4)"):
        assert ask(judge, other, reference) == Verdict(False, "text"), other
    assert judge.counts["text"] == before + 3


def test_references_that_no_parser_reads_are_found_before_a_run():
    judge = MathJudge()
    truths = ["5", r"\frac{1}{2}", "1+x", [UNREADABLE[0], "7"], UNREADABLE[1], UNREADABLE[1]]
    assert judge.unreadable(truths, limit_s=60.0) == UNREADABLE
    assert judge._process.child is not None, "the worker is kept for the run"
    assert judge.unreadable(truths, limit_s=0.0) == []
    asyncio.run(judge.close())


def test_a_worker_that_stops_reading_a_reference_is_an_error_and_not_a_wrong_answer():
    judge = MathJudge(time_s=0.3)
    judge._readable[ENDLESS] = True  # as if it had been read on a faster machine
    with pytest.raises(JudgeError, match="was read before"):
        ask(judge, "5x", ENDLESS)
    asyncio.run(judge.close())


def test_fifty_answers_at_once_are_each_judged(judge):
    async def scenario():
        return await asyncio.gather(*(judge.equal(f"{n}+x", f"x+{n + n % 2}") for n in range(50)))

    assert [verdict.equal for verdict in asyncio.run(scenario())] == [n % 2 == 0 for n in range(50)]


def test_one_judge_serves_loops_in_several_threads(judge):
    verdicts = []
    threads = [
        threading.Thread(target=lambda n=n: verdicts.append(ask(judge, f"{n}y+1", f"1+y*{n}")))
        for n in range(2, 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [verdict.equal for verdict in verdicts] == [True] * 4


def test_a_closed_judge_leaves_no_worker_and_can_be_used_again():
    judge = MathJudge()
    assert ask(judge, "x+1", "1+x").equal
    first = judge._process.child
    asyncio.run(judge.close())
    assert first.poll() is not None
    assert judge._process.child is None
    assert ask(judge, "x+2", "2+x").equal
    asyncio.run(judge.close())


ORPHAN = """
import asyncio, os
from rolecall.grading.math.equivalence import MathJudge
judge = MathJudge(time_s=60.0)
async def scenario():
    await judge.equal("x+1", "1+x")
    asyncio.create_task(judge.equal("9^{9^{9^{9}}}", "5"))
    await asyncio.sleep(0.3)
    print(judge._process.child.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(scenario())
"""


def test_a_busy_worker_does_not_outlive_its_parent():
    told = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True)
    worker, deadline = int(told.stdout), time.monotonic() + 10
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("name", ["math_500", "aime_1983_2024", "aime_2025", "amc_34"])
def test_every_reference_equals_itself_in_a_box_and_can_be_told_from_another(judge, name):
    path = DATA / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    _check_truths(judge, [row["answer"] for row in json.loads(path.read_text(encoding="utf-8"))])


@pytest.mark.evidence
def test_every_reference_of_the_parquet_sample_equals_itself_in_a_box(judge):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = DATA / "drmas_math_300.parquet"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    rows = parquet.read_table(path).column("reward_model").to_pylist()
    _check_truths(judge, [row["ground_truth"] for row in rows])


def _check_truths(judge, truths):
    async def scenario():
        for truth in truths:
            for reference in references(truth):
                given = extract(rf"so \boxed{{{reference}}}.")
                assert (await judge.equal(given, truth)).equal, truth
            # Another answer reaches the worker where rules cannot read the reference.
            assert not (await judge.equal("-987123", truth)).equal, truth

    asyncio.run(scenario())
