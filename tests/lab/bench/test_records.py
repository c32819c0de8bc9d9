"""Ratios by hand, the schema of a record, the same work on both sides, the generated page."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from rolecall_lab.bench import Benchmark, Measured
from rolecall_lab.bench.machine import PACKAGES, header
from rolecall_lab.bench.records import check_same_work, record
from rolecall_lab.bench.regression import slower
from rolecall_lab.bench.results import keep, results_file
from rolecall_lab.bench.run import line
from tests.cli.test_cli import command

pytestmark = [pytest.mark.slow, pytest.mark.evidence]

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate_benchmarks.py")
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)

BENCHMARK = Benchmark("walk", "steps/s", "A walk.", None, None, "here:ours", {"trl": "here:theirs"})


def pairs(*values: tuple[float, float | None]):
    return [(Measured(a), None if b is None else Measured(b)) for a, b in values]


def test_a_record_holds_medians_of_the_sides_and_of_the_ratios_of_neighbours():
    found = record(BENCHMARK, "trl", pairs((10, 5), (12, 4), (11, 5)))
    assert asdict(found) == {
        "name": "walk",
        "peer": "trl",
        "unit": "steps/s",
        "ours": 11,
        "theirs": 5,
        "ratio": {"min": 2.0, "median": 2.2, "max": 3.0},
        "pairs": 3,
    }


def test_a_machine_that_slows_down_for_a_while_leaves_the_ratio_alone():
    steady = record(BENCHMARK, "trl", pairs((10, 5), (10, 5), (10, 5)))
    slowed = record(BENCHMARK, "trl", pairs((10, 5), (2, 1), (4, 2)))
    assert slowed.ratio == steady.ratio


def test_without_a_peer_there_is_no_ratio():
    found = record(BENCHMARK, "none", pairs((3, None), (1, None), (2, None)))
    assert (found.ours, found.theirs, found.ratio, found.pairs) == (2, None, None, 3)
    assert line(found) == "walk  2 steps/s  no peer, 3 runs"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"ids": 5.0}, {"ids": 6.0}), ({"ids": 5.0}, {}), ({"loss": float("nan")}, {"loss": 0.0})],
)
def test_sides_that_did_different_work_are_not_compared(ours, theirs):
    with pytest.raises(RuntimeError, match="not the same work: "):
        check_same_work(Measured(1.0, ours), Measured(1.0, theirs))


def test_losses_that_differ_by_rounding_are_the_same_work():
    check_same_work(Measured(1.0, {"loss": 0.12345}), Measured(1.0, {"loss": 0.12346}))


def test_the_header_says_where_and_with_what():
    found = header()
    assert set(found) == {"machine", "versions", "commit", "threads"}
    assert set(found["versions"]) == {"python", *PACKAGES}
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["cpu"]
    json.dumps(found)


def results(smoke: bool) -> dict:
    records = [
        asdict(record(BENCHMARK, "trl", pairs((10, 5)))),
        asdict(record(BENCHMARK, "none", pairs((10, None)))),
    ]
    more = {"smoke": smoke, "missing": ["vllm"], "failed": []}
    return {"header": header() | more, "records": records}


def test_the_page_shows_each_record_and_who_was_missing(tmp_path):
    kept = json.loads(keep(results(smoke=False), tmp_path).read_text())
    floor = {"name": "walk", "gflop_per_s": 200, "gb_per_s": 20, "sampling_floor_s": 1.0,
             "sampling_s": 1.5, "floor_s": 3.0, "seconds": 4.0, "commit": "0123456789"}  # fmt: skip
    page = generate.page([kept], [{"header": kept["header"], "floors": [floor]}])
    assert "| walk | 200 | 20 | 1.00 | 1.50 | 3.00 | 4.00 | 75% | 0123456 |" in page
    assert f"### {header()['machine']['cpu']}\n" in page
    commit = header()["commit"][:7] or "unknown"
    assert f"| walk | steps/s | 10 | trl | 5 | **2.00** (2.00 .. 2.00) | 1 | {commit} |" in page
    assert f"| walk | steps/s | 10 | none |  |  | 1 | {commit} |" in page
    assert "Not installed, so not compared: vllm." in page


def test_newer_records_replace_older_ones_of_the_same_processor(tmp_path):
    first, second = results(smoke=False), results(smoke=False)
    second["records"] = [second["records"][0] | {"ours": 99}]
    second["header"]["commit"] = "abc"
    assert keep(first, tmp_path) == keep(second, tmp_path) == results_file(tmp_path)
    found = json.loads(results_file(tmp_path).read_text())["records"]
    assert [(one["ours"], one["commit"]) for one in found] == [
        (99, "abc"), (10, first["header"]["commit"]),
    ]  # fmt: skip
    second["header"]["machine"]["cpu"] = "Another(R) one, family 6"
    assert keep(second, tmp_path).name == "another-r-one-family-6.json"


def test_smoke_results_are_not_kept(tmp_path, capsys):
    """It is said before anything runs."""
    assert command("bench", "team-rollout-s", "--smoke", "--keep", str(tmp_path / "kept")) == 2
    assert "results of --smoke say nothing about speed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_is_current():
    assert (ROOT / "docs/benchmarks.md").read_text() == generate.make_page()


def measured(*ratios: float, name: str = "update", peer: str = "padded") -> dict:
    low, middle, high = sorted(ratios)
    ratio = {"min": low, "median": middle, "max": high}
    return {"records": [{"name": name, "peer": peer, "pairs": 3, "ratio": ratio}]}


def test_a_ratio_that_fell_is_named_and_one_within_its_spread_is_not():
    before = measured(3.0, 3.3, 3.5)
    assert slower(measured(2.5, 2.6, 2.8), before) == []  # 2.8 is above 0.9 x 3.0
    [line] = slower(measured(2.5, 2.6, 2.69), before)
    assert line.startswith("update against padded: the best ratio of 3 pairs is 2.69; it was 3.30")
    assert slower(measured(0.1, 0.1, 0.1, peer="trl"), before) == [], "nothing to compare with"


def test_results_with_instructions_switched_off_are_kept_apart(monkeypatch):
    whole = header()["machine"]["cpu"]
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert header()["machine"]["cpu"] == f"{whole}, limited to AVX2"
