"""Tables of what runs came to: gains, spikes, savings, and what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rolecall_lab.reproduce import drmas, figures
from rolecall_lab.reproduce.found import RunFound
from rolecall_lab.reproduce.report import report


def run(seed: int, average: float, **changes: object) -> RunFound:
    made = RunFound(
        seed=seed, average=average, passed=80.0, margin=1.5, by_source={}, seconds=2.0,
        tokens={"solver": 10.0, "verifier": 5.0}, usd=0.5,
    )  # fmt: skip
    return replace(made, **changes)


def lines(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_what_has_not_run_is_a_dash_beside_what_is_published():
    rows = lines(report("table", 1, drmas.table(1, "small"), {}))
    own = next(row for row in rows if row[:3] == ["tiny:math", "own", "Dr. MAS"])
    assert own[3:] == ["-", "-", "60.7", "74.2"]


def test_a_gain_is_the_ratio_of_sums_over_teams_by_seed():
    settings = drmas.table(1, "small")
    found = {}
    for setting in settings:
        if setting.algorithm in ("grpo", "drmas"):
            base = {"grpo": 40.0, "drmas": 50.0}[setting.algorithm]
            found[setting.name] = [run(0, base), run(1, 2 * base if base == 50.0 else base)]
    told = report("table", 1, settings, found)
    assert "avg@16 1.875 (by seed 1.250, 2.500; published 1.056)" in told
    assert "pass@16 1.000 (by seed 1.000, 1.000; published 1.046)" in told


def test_seeds_that_not_all_teams_have_are_left_out_of_the_gain():
    settings = drmas.table(1, "small")
    found = {s.name: [run(0, 50.0)] for s in settings if s.algorithm in ("grpo", "drmas")}
    found[settings[-1].name].append(run(1, 90.0))
    assert "(by seed 1.000; published 1.056)" in report("table", 1, settings, found)
    found[settings[-1].name] = []
    assert "Averages" not in report("table", 1, settings, found)


def test_benchmarks_are_told_one_by_one_where_the_paper_has_them():
    settings = drmas.table(1, "published")
    setting = settings[-1]
    found = {setting.name: [run(0, 50.0, by_source={"aime24": (40.0, 60.0)})]}
    rows = lines(report("table", 1, settings, found))
    wanted = [f"{v:.1f}" for v in setting.published.by_source["aime24"]]
    assert ["Qwen/Qwen3-8B", "own", "Dr. MAS", "aime24", "40.0", "60.0", *wanted] in rows


def test_spikes_are_counted_over_seeds_and_by_agent(tmp_path):
    settings = drmas.figure(1, "small")
    calm, wild = [1.0] * 9 + [2.0], [1.0] * 8 + [4.0, 7.0]
    scores = [0.1 * step for step in range(10)]
    found = {
        setting.name: [
            run(seed, 50.0, norms={"solver": norms, "verifier": calm}, scores=scores)
            for seed in (0, 1)
        ]
        for setting, norms in zip(settings, (wild, calm), strict=True)
    }
    rows = lines(report("figure", 1, settings, found))
    assert ["GRPO", "solver", "4 of 20", "7.0, 7.0"] in [row[:4] for row in rows]
    assert ["Dr. MAS", "solver", "0 of 20", "2.0, 2.0"] in [row[:4] for row in rows]
    assert figures.draw(1, settings, found, tmp_path / "norms.png")
    assert (tmp_path / "norms.png").stat().st_size > 10_000
    assert not figures.draw(1, settings, {}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_two_models_are_compared_with_one(tmp_path):
    one, two = settings = drmas.figure(4, "small")
    tokens = {"verifier": 6.0, "searcher": 3.0, "answerer": 1.0}
    found = {
        one.name: [run(0, 50.0, tokens=tokens), run(1, 60.0, tokens=tokens)],
        two.name: [run(0, 40.0, seconds=1.5, usd=0.2, tokens=tokens)],
    }
    told = report("figure", 4, settings, found)
    assert "latency 25.0 % (published 31.6 %), cost 60.0 % (published 41.8 %)" in told
    assert [
        "tiny:search and tiny:search_small",
        "40.0 +- 1.5",
        "80.0",
        "10",
        "1.500",
        "0.2000",
    ] in (lines(told))
    assert figures.draw(4, settings, found, tmp_path / "two.png")


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_mean_over_seeds_has_an_interval_and_one_seed_its_margin_over_tasks(seeds):
    [setting] = [s for s in drmas.table(1, "small") if s.name == "math-tiny-math-own-drmas"]
    told = report("table", 1, [setting], {setting.name: [run(n, 50.0 + n) for n in range(seeds)]})
    assert ("50.0 +- 1.5" if seeds == 1 else "51.0 +- 2.5") in told
