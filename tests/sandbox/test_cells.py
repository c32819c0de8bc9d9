"""Notebook cells: one namespace, each cell's own output, and limits for each and for all."""

import asyncio
import base64

import pytest

from rolecall.sandbox.base import Limits, Run
from rolecall.sandbox.cells import run_cells

pytestmark = pytest.mark.slow


def play(sandbox, *sources, cell_s=0.0, fetch=(), files=None, **limits):
    run = Run("", files=files or {}, fetch=fetch, limits=Limits(**limits))
    return asyncio.run(run_cells(sandbox, sources, run=run, cell_s=cell_s))


def test_cells_share_names_and_show_their_last_value(sandbox):
    cells, ran = play(sandbox, "x = 20", "def f(): return x + 1\nprint('hi')\nf() * 2", "None", "")
    assert [cell.stdout for cell in cells] == ["", "hi\n", "", ""]
    assert [cell.display for cell in cells] == [[], [{"text/plain": "42"}], [], []]
    assert ran.status == "finished"


def test_a_cell_that_raises_is_told_and_the_next_goes_on(sandbox):
    cells, ran = play(sandbox, "def f():\n    1 / 0\nf()", "x = (", "import sys; sys.exit(3)", "7")
    first, second, third, fourth = cells
    assert (first.error[0]["ename"], first.error[0]["evalue"]) == (
        ("ZeroDivisionError", "division by zero")
    )
    assert [line for line in first.error[0]["traceback"] if "__program__" in line] == []
    assert '"<cell 1>", line 2, in f' in "".join(first.error[0]["traceback"])
    assert second.error[0]["ename"] == "SyntaxError"
    assert third.error[0]["ename"] == "SystemExit"
    assert fourth.display == [{"text/plain": "7"}]
    assert ran.status == "finished"


def test_output_of_child_processes_is_the_cells_and_is_cut(sandbox):
    cells, _ = play(
        sandbox,
        "import os; os.system('echo child; echo bad >&2'); print('self')",
        "print('x' * 1_000_000)",
        output_bytes=1000,
    )
    assert (cells[0].stdout, cells[0].stderr) == ("child\nself\n", "bad\n")
    assert "999001 bytes omitted" in cells[1].stdout
    assert len(cells[1].stdout) < 1100


def test_a_cell_that_is_too_slow_ends_the_notebook_but_not_what_was_done(sandbox):
    stubborn = "while True:\n    try: import time; time.sleep(60)\n    except BaseException: pass"
    sources = ("open('x.txt', 'w').write('y')", "print(1)", stubborn, "print(2)")
    cells, ran = play(sandbox, *sources, cell_s=0.5, fetch=("*.txt",))
    assert [cell.stdout for cell in cells] == ["", "1\n"]
    assert (ran.status, ran.limit, ran.files) == ("timeout", "wall", {"x.txt": b"y"})
    assert ran.wall_s < 5
    cells, ran = play(sandbox, *["import time; time.sleep(0.3)"] * 9, cell_s=0.9, wall_s=1.0)
    assert 0 < len(cells) < 4
    assert ran.status == "timeout"


def test_a_notebook_that_ends_itself_keeps_what_was_done(sandbox):
    cells, ran = play(sandbox, "print(1)", "import os; os._exit(5)", "print(2)")
    assert [cell.stdout for cell in cells] == ["1\n"]
    assert (ran.status, ran.return_code) == ("error", 5)


def test_what_a_cell_writes_in_place_of_the_script_is_not_believed(sandbox):
    forged = "import os\nfor number in range(3, 20):\n"
    forged += "    try: os.write(number, b'[[[' * 9 + b'\\n')\n    except OSError: pass"
    cells, ran = play(sandbox, "print(1)", forged, "print(2)")
    assert [cell.stdout for cell in cells] == ["1\n"]
    assert ran.status != "finished"


def test_memory_is_limited_as_in_any_run(sandbox):
    cells, ran = play(sandbox, "x = 1", "y = b'x' * (1 << 30)", memory_mb=100)
    assert len(cells) == 1
    assert (ran.status, ran.limit) == ("error", "memory")


def test_a_value_shows_itself_in_each_form_that_it_has(sandbox):
    cells, _ = play(
        sandbox,
        "class Table:\n"
        "    def __repr__(self): return 'plain'\n"
        "    def _repr_html_(self): return '<b>1</b>'\n"
        "    def _repr_png_(self): return b'\\x00'\n"
        "    def _repr_svg_(self): raise ValueError\n"
        "    def _repr_latex_(self): return 'x' * 2000\n"
        "Table()",
        "display(1, 'two')\n3",
        "display(Table); 1 / 0",
        output_bytes=1000,
    )
    assert cells[0].display == [
        {"text/plain": "plain", "text/html": "<b>1</b>", "image/png": "AA=="}
    ]
    assert [shown["text/plain"] for shown in cells[1].display] == ["1", "'two'", "3"]
    assert len(cells[2].display) == len(cells[2].error) == 1


def test_cells_may_await(sandbox):
    cells, _ = play(
        sandbox, "import asyncio\nlock = asyncio.Lock()\nawait lock.acquire()", "lock.locked()"
    )
    assert [cell.error for cell in cells] == [[], []]
    assert cells[0].display == cells[1].display == [{"text/plain": "True"}]


def test_figures_of_pyplot_are_shown_once(sandbox):
    draw = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])\nplt.show()"
    first, second = play(sandbox, draw, "None", wall_s=60, output_bytes=1 << 20)[0]
    assert first.error == []
    [figure] = first.display
    assert base64.b64decode(figure["image/png"]).startswith(b"\x89PNG")
    assert second.display == []
