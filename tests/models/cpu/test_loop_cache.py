"""Whatever stands in the cache of compiled loops, or if there is no place for one, a loop runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.models.cpu import compiled
from rolecall.models.cpu.compiled import is_whole
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

LOOP = """
from rolecall.models.cpu import compiled

@compiled.compile_outer
def doubled(x):
    return 2 * x

if __name__ == "__main__":
    print(doubled(21), sum(doubled.stats.cache_hits.values()), compiled.is_kept(doubled))
"""


def run(folder: Path, **places: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), **places}
    return subprocess.run(
        [sys.executable, str(folder / "loop.py")], env=env, capture_output=True, text=True
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "loop.py").write_text(LOOP)
    return tmp_path


def damaged(content: bytes, how: str) -> bytes:
    if how == "empty":
        return b""
    if how == "cut":
        return content[: len(content) // 2]
    if how == "one byte":
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    return content[:-40] + b"x" * 40  # "another end"


HOW = ["empty", "cut", "one byte", "another end"]


@pytest.mark.parametrize("suffix", leave_to_evidence(["nbi", "nbc"], keep=["nbc"]))
@pytest.mark.parametrize("how", leave_to_evidence(HOW, keep=[]))
def test_a_damaged_entry_is_compiled_anew_and_heals(folder, suffix, how):
    assert run(folder).stdout == "42 0 True\n"
    assert run(folder).stdout == "42 1 True\n"
    [file] = folder.rglob(f"*.{suffix}")
    assert is_whole(file)
    file.write_bytes(damaged(file.read_bytes(), how))
    assert not is_whole(file)
    healed = run(folder)
    assert (healed.returncode, healed.stdout, healed.stderr) == (0, "42 0 True\n", "")
    assert run(folder).stdout == "42 1 True\n"


@pytest.mark.evidence
def test_an_entry_that_is_no_file_is_a_missing_one(folder):
    assert run(folder).stdout == "42 0 True\n"
    [file] = folder.rglob("*.nbc")
    file.unlink()
    assert run(folder).stdout == "42 0 True\n"
    assert run(folder).stdout == "42 1 True\n"


def test_without_a_place_to_write_loops_run_and_one_line_says_so(folder):
    (folder / "loop.py").write_text(
        LOOP.replace(
            "return 2 * x\n",
            "return 2 * x\n\n\n" + ("@compiled.compile_outer\ndef tripled(x):\n    return 3 * x\n"),
        )
    )
    (folder / "blocked").write_text("a file where folders would be")
    (folder / "__pycache__").write_text("a file, too")
    nowhere = str(folder / "blocked")
    done = run(folder, NUMBA_CACHE_DIR=nowhere, XDG_CACHE_HOME=nowhere, HOME=nowhere)
    assert (done.returncode, done.stdout) == (0, "42 0 False\n")
    [line] = done.stderr.splitlines()
    assert line.startswith("compiled loops are not kept, every start compiles them: ")
    assert "NUMBA_CACHE_DIR" in line


def test_a_full_disk_does_not_end_a_run(folder):
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    )
    (folder / "loop.py").write_text(code + LOOP)
    done = run(folder, PYTHONDONTWRITEBYTECODE="1")
    assert (done.returncode, done.stdout) == (0, "42 0 False\n")
    assert "compiled loops are not kept" in done.stderr


@pytest.mark.evidence
def test_the_loop_that_all_threads_share_heals_too(tmp_path):
    code = "from rolecall.models.cpu.parallel import provide_loop\nprint(provide_loop().cache_hits)"
    (tmp_path / "loop.py").write_text(code)
    assert [run(tmp_path).stdout, run(tmp_path).stdout] == ["0\n", "1\n"]
    for file in [*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")]:
        file.write_bytes(b"")
        assert [run(tmp_path).stdout, run(tmp_path).stdout] == ["0\n", "1\n"]


def test_no_loop_is_kept_by_numbas_own_cache():
    """Which does not heal: `kept` and `kept_callback` are the ways to keep one."""
    package = Path(compiled.__file__).parents[2]
    wrong = [
        f"{file.name}: {ast.unparse(node)}"
        for file in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "cache"
        if isinstance(node.value, ast.Constant) and node.value.value is True
    ]
    assert wrong == []
