"""`rolecall collect` keeps what it has played, and writes a file alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.data.files import read_rows
from rolecall.runtime.file_locks import locked_file
from rolecall.runtime.spending import Account, Budget, Prices
from rolecall.storage.journal import Journal
from tests.toy import command, solo_config, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 12  # 3 groups of 4


@pytest.fixture(scope="module")
def config(model_folder, tmp_path_factory) -> Path:
    made = solo_config(model_folder, rollout={"groups": 3, "group_size": 4})
    return write(tmp_path_factory.mktemp("collect") / "c.yaml", made)


def rows(file: Path) -> list[dict]:
    return sorted((row for _, row in read_rows(file)), key=lambda row: row["id"])


def killed(config: Path, output: Path, *options: str, count: int) -> None:
    script = [sys.executable, "-m", "tests.killed_evaluation", "collect", str(count), "99"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [*script, str(config), *options, "--output", str(output)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("deterministic", "again"),
    [("false", ATTEMPTS - 6), ("true", ATTEMPTS)],
)
def test_a_collect_that_was_killed_goes_on_and_comes_to_the_same(
    config, tmp_path, monkeypatch, deterministic, again
):
    options = (f"trainer.deterministic={deterministic}",)
    assert command("collect", config, *options, "--output", tmp_path / "whole.jsonl") == 0
    output = tmp_path / "rows.jsonl"
    killed(config, output, *options, count=7)
    assert not output.exists()
    append, played = Journal.append, []

    def counted(self, episode):
        played.append(episode.id)
        append(self, episode)

    monkeypatch.setattr(Journal, "append", counted)
    assert command("collect", config, *options, "--output", output) == 0
    assert len(played) == again
    found = rows(output)
    assert len({row["id"] for row in found}) == len(found) == ATTEMPTS
    if deterministic == "true":
        assert found == rows(tmp_path / "whole.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "whole.jsonl"]


@pytest.mark.evidence
def test_a_collect_with_other_keys_takes_nothing_over(config, tmp_path, monkeypatch):
    output = tmp_path / "rows.jsonl"
    killed(config, output, count=7)
    append, played = Journal.append, []
    monkeypatch.setattr(
        Journal, "append", lambda self, e: (played.append(e.id), append(self, e))[1]
    )
    assert command("collect", config, "trainer.seed=5", "--output", output) == 0
    assert len(played) == ATTEMPTS
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_second_collect_into_one_file_is_refused_before_it_plays(config, tmp_path, capsys):
    place = tmp_path / ".rows.jsonl.unfinished"
    place.mkdir()
    with locked_file(place / ".lock", wait_s=0.0):
        assert command("collect", config, "--output", tmp_path / "rows.jsonl") == 2
    assert "another process writes" in capsys.readouterr().err
    assert command("collect", config, "--output", tmp_path / "rows.jsonl") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"usd": "x"}', '{"parts": 3}', "null"])
def test_a_damaged_file_of_costs_is_told_and_counted_from_nothing(content, tmp_path, caplog):
    file = tmp_path / "spent-judge.json"
    file.write_text(content)
    account = Account(Prices(), Budget(usd=None, tokens=100))
    account.keep(file)
    assert account.spent.tokens == 0
    assert "spent-judge.json is damaged" in caplog.text
    file.write_text('{"usd": 1.5, "tokens": 90, "parts": {"step 3": {"usd": 0.5, "tokens": 4}}}')
    account = Account(Prices(), Budget(usd=None, tokens=100))
    account.keep(file)
    assert account.spent.tokens == 90
