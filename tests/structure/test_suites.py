"""`.ci/suites` runs the suites whose files are others than when they last passed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITES = tomllib.loads((ROOT / ".ci/suites.toml").read_text())
TWO = """
[one]
minutes = 5
tests = ["tests/test_one.py"]
paths = ["src/one"]

[two]
minutes = 2
tests = ["tests/test_two.py"]
paths = ["src/two.py"]
"""


def git(folder: Path, *arguments: str) -> None:
    person = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *person, *arguments], cwd=folder, check=True, capture_output=True)


def suites(
    folder: Path, *arguments: str, runner: str = "true", status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the script on a repository; `runner` stands where pytest would."""
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/suites", "--root", folder, "--pytest", runner, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done


def chosen(folder: Path) -> list[str]:
    lines = suites(folder).stdout.splitlines()
    return [line.partition(":")[0] for line in lines if ": runs;" in line]


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    for file in ("src/one/part.py", "src/two.py", "tests/test_one.py", "tests/test_two.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(file)
    (folder / ".ci").mkdir()
    (folder / ".ci/suites.toml").write_text(TWO)
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "--message", "Begin")
    return folder


def test_a_suite_runs_until_it_has_passed_and_again_when_its_files_change(repository):
    assert chosen(repository) == ["one", "two"]
    suites(repository, "--record")
    assert chosen(repository) == []
    (repository / "README.md").write_text("of no suite")
    assert chosen(repository) == []
    (repository / "src/one/new.py").write_text("not committed yet")
    assert chosen(repository) == ["one"]
    (repository / "tests/test_two.py").write_text("another test")
    assert chosen(repository) == ["one", "two"]
    suites(repository, "--record", "two")
    assert chosen(repository) == ["one"]


def test_a_clean_clone_knows_what_has_passed(repository, tmp_path):
    (repository / "src/two.py").write_text("changed before it passed")
    suites(repository, "--record")
    git(repository, "add", ".")
    git(repository, "commit", "--message", "Change and record")
    git(tmp_path, "clone", str(repository), "clone")
    assert chosen(tmp_path / "clone") == []
    (tmp_path / "clone/src/one/part.py").rename(tmp_path / "clone/src/one/renamed.py")
    assert chosen(tmp_path / "clone") == ["one"]


def test_what_fails_is_not_recorded_and_the_rest_is(repository):
    (repository / "runner.py").write_text("import sys; sys.exit('tests/test_one.py' in sys.argv)")
    runner = f"{sys.executable} {repository / 'runner.py'}"
    done = suites(repository, "--record", runner=runner, status=1)
    assert "one: FAILED" in done.stdout
    assert "two: passed" in done.stdout
    assert chosen(repository) == ["one"]


def test_a_run_alone_records_nothing(repository):
    suites(repository, "--run", "one")
    assert chosen(repository) == ["one", "two"]


def test_what_does_not_fit_into_the_minutes_is_left_out_with_what_to_do(repository):
    done = suites(repository, "--record", "--minutes", "6")
    assert "two: passed" in done.stdout
    assert 'run `make test-alone SUITES="one"` and commit .ci/passed.json' in done.stdout
    assert chosen(repository) == ["one"]


def test_a_name_or_a_path_that_is_not_there_is_an_error(repository):
    assert "no suite three" in suites(repository, "--run", "three", status=1).stderr
    (repository / "src/two.py").unlink()
    assert "there is no src/two.py" in suites(repository, status=1).stderr


def test_each_test_that_runs_alone_is_in_one_suite():
    files = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^(pytestmark|@pytest|.*marks=).*mark\.alone", file.read_text(), re.MULTILINE)
    }
    assert len(files) > 10
    for file in files:
        paths = [path for suite in SUITES.values() for path in suite["tests"]]
        assert [file.startswith(path) for path in paths].count(True) == 1, file


def test_all_that_suites_depend_on_is_there():
    paths = [path for suite in SUITES.values() for path in suite["tests"] + suite["paths"]]
    assert [path for path in paths if not (ROOT / path).exists()] == []
