"""Slopes of known numbers, every axis at a tiny size, and the page made of the results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from rolecall.core.types import Episode
from rolecall_lab.bench.rolecall_step import measure_steps
from rolecall_lab.bench.scaling import AXES, Work, config_for, measure_seconds, shrink
from rolecall_lab.bench.slopes import fit_growth, fit_slope, summarize

ROOT = Path(__file__).resolve().parents[3]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scaling = load(ROOT / "benchmarks/scaling.py")
drawing = load(ROOT / "docs/draw_scaling.py")


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_slope_is_the_power_of_a_cost(power):
    positions = [4, 8, 16, 64]
    assert fit_slope(positions, [3.0 * x**power for x in positions]) == pytest.approx(power)


def test_a_round_on_a_slow_machine_leaves_the_slope_alone():
    rounds = [[1.0, 2.0, 4.0], [9.0, 18.0, 36.0], [1.0, 2.0, 4.0]]
    slope = summarize([1, 2, 4], rounds)
    assert (slope.slope, slope.min, slope.max, slope.last) == pytest.approx((1, 1, 1, 1))
    assert not slope.is_steep


def test_the_last_doubling_shows_what_fixed_costs_hide():
    """1 + x ** 2 / 100 seconds: the line through all points is far from steep."""
    positions = [1, 2, 4, 8, 16]
    slope = summarize(positions, [[1 + x**2 / 100 for x in positions]])
    assert slope.slope < 0.5
    assert slope.last == pytest.approx(1.12, abs=0.01)
    assert slope.is_steep


def test_growth_is_counted_without_the_first_steps():
    looks = {"steps": [50, 100, 150, 200, 250], "mb": [100.0, 900.0, 1000.0, 1001.0, 1002.0]}
    assert fit_growth(looks) == pytest.approx(20.0)


def test_an_axis_changes_one_size_by_powers_of_two_over_eight_times():
    for axis in AXES.values():
        steps = {b / a for a, b in zip(axis.values, axis.values[1:], strict=False)}
        assert steps == {2.0}
        assert axis.position(axis.values[-1]) >= 8 * axis.position(axis.values[0])


def test_turns_are_counted_by_new_tokens_and_policies_share_the_same_turns(tmp_path):
    assert [AXES["turns"].position(turns) for turns in (1, 2, 32)] == [24, 48, 768]
    few, many = (config_for(shrink(AXES["policies"].work(n)), tmp_path) for n in (1, 8))
    assert (len(few.policies), len(many.policies)) == (1, 8)
    assert few.workflow.options["turns"] == many.workflow.options["turns"] == 8
    adapters = config_for(shrink(AXES["adapters"].work(2)), tmp_path).policies.values()
    assert [policy.adapter.rank for policy in adapters] == [8, 8]
    assert len({policy.base for policy in adapters}) == 1
    assert len(config_for(shrink(AXES["agents"].work(4)), tmp_path).policies) == 1


@pytest.mark.slow
def test_every_axis_and_memory_are_kept_drawn_and_shown(tmp_path):
    def start(name, value):
        return measure_seconds(shrink(AXES[name].work(value)), tmp_path)

    about = {"commit": "abc", "threads": 1, "load": 0.0}
    for name, axis in AXES.items():
        result = scaling.measure_axis(name, axis.values[:2], rounds=2, start=start)
        assert all(seconds > 0 for row in result["seconds"] for seconds in row)
        file = scaling.keep({name: about | result}, tmp_path / "kept")
    memory = scaling.measure_memory(200, tmp_path, work=shrink(Work(samples=2, prompt=8)))
    assert memory["steps"] == [50, 100, 150, 200]
    assert all(100 < megabytes < 100_000 for megabytes in memory["mb"])
    scaling.keep({"memory": about | memory}, tmp_path / "kept")
    kept = json.loads(file.read_text()) | {"file": file.stem}
    assert list(kept["results"]) == [*AXES, "memory"]
    drawing.draw(kept, tmp_path / "drawn/plot.svg")
    drawn, page = (tmp_path / "drawn/plot.svg").read_text(), drawing.section([kept])
    for axis in AXES.values():
        assert f"{axis.title}: slope" in drawn
        assert f"| {axis.title} | {axis.size}: " in page
    assert "Provisional" not in page


@pytest.mark.slow
def test_a_measured_step_does_not_write_out_its_episodes(tmp_path, monkeypatch):
    """`asyncio.Runner` writes out the result of a task; that took a quarter of a step."""
    written = []
    monkeypatch.setattr(Episode, "__repr__", lambda self: written.append(self) or "")
    work = shrink(Work(samples=2, prompt=8, turns=2))
    assert measure_steps(config_for(work, tmp_path))(0).facts == {"trained tokens": 2 * 2 * 2 * 4}
    assert written == []


def steep(load: float) -> dict:
    axis = {"positions": [4, 8], "seconds": [[1.0, 4.0]], "processor_seconds": [[1.0, 2.0]]}
    about = {"commit": "abc", "threads": 2, "load": load}
    header = {"machine": {"cpu": "A processor", "cores": 2}}
    return {"header": header, "results": {"group": about | axis}, "file": "a-processor"}


def test_a_steep_slope_is_marked_and_a_busy_machine_is_named():
    page = drawing.section([steep(load=3.0)])
    assert "| **2.00, above 1.1** (2.00 .. 2.00) | **2.00, above 1.1** | 1.00 |" in page
    assert "- **Group size**: " in page
    assert "**Provisional**" in page
    assert "**Provisional**" not in drawing.section([steep(load=0.1)])
