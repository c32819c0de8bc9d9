"""What a killed `rolecall data` leaves is neither used nor kept."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecall.data.data_locations import locate
from rolecall.retrieval.folders import written_aside
from tests.data.test_data_sets import sums, write
from tests.toy import command

ROWS = 60_000


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("rows") / "train.jsonl", sums(*range(ROWS)))


def start(rows: Path, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "rolecall", "data", "gsm8k", "--from", f"train={rows}",
         "--from", f"test={rows}", "--output", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def written_to(place: Path) -> int:
    """Bytes that are in files of rows anywhere below a place."""
    return sum(file.stat().st_size for file in place.rglob("train.jsonl"))


@pytest.mark.parametrize("there", ["nothing", "an earlier set"])
def test_a_killed_preparation_leaves_no_part_that_is_found(rows, there, tmp_path):
    folder = tmp_path / "data" / "gsm8k"
    if there == "an earlier set":
        write(folder / "train.jsonl", sums(1, 2, 3))
        write(folder / "test.jsonl", sums(4))
    before = written_to(tmp_path)
    with start(rows, folder) as process:
        until = time.monotonic() + 60
        while written_to(tmp_path) <= before and time.monotonic() < until:
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert written_to(tmp_path) > before, "it was killed while it wrote"
    for name in (folder, folder.parent):
        if there == "nothing":
            with pytest.raises(ValueError, match=r"no data set|no single data file"):
                locate(str(name), split="train")
        else:
            assert locate(str(name), split="train") == folder / "train.jsonl"
    small = write(tmp_path / "given" / "small.jsonl", sums(7, 8))
    sources = ("--from", f"train={small}", "--from", f"test={small}")
    assert command("data", "gsm8k", *sources, "--output", folder) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["test.jsonl", "train.jsonl"]
    assert [path.name for path in folder.parent.iterdir()] == ["gsm8k"], "nothing is left beside it"


def test_what_an_earlier_version_left_inside_is_not_found(tmp_path):
    write(tmp_path / "tmpab_c12x3" / "train.jsonl", sums(1))
    with pytest.raises(ValueError, match="no single data file"):
        locate(str(tmp_path), split="train")
    file = write(tmp_path / "train.jsonl", sums(2))
    assert locate(str(tmp_path), split="train") == file


def test_an_index_that_was_being_written_is_removed_by_the_next_one(tmp_path):
    code = (
        "import pathlib, sys\nfrom rolecall.retrieval.folders import written_aside\n"
        "with written_aside(pathlib.Path(sys.argv[1])) as aside:\n"
        "    (aside / 'lines').write_text('x')\n    print('here', flush=True)\n"
        "    sys.stdin.read()"
    )
    folder = tmp_path / "index"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"here\n"
        process.kill()
    assert not folder.exists()
    with written_aside(folder) as aside:
        (aside / "whole").write_text("y")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert [path.name for path in folder.iterdir()] == ["whole"]
