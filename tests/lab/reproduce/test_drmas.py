"""The teams of Dr. MAS: published numbers agree, and configs say what they claim."""

from __future__ import annotations

from statistics import fmean

import pytest

from rolecall.config.schema import Config
from rolecall_lab.reproduce import drmas
from rolecall_lab.reproduce.drmas_published import ABLATION, GAINS, find_published
from rolecall_lab.reproduce.settings import ALGORITHMS, Setting
from tests.support.evidence import leave_to_evidence

PARTS = [(drmas.table, n) for n in (1, 2, 3)] + [(drmas.figure, n) for n in (1, 3, 4)]


def every(size: str) -> dict[str, Setting]:
    return {s.name: s for part, number in PARTS for s in part(number, size)}


def trained(setting: Setting) -> dict:
    return {name: of.get("base") for name, of in setting.config["policies"].items()}


@pytest.mark.parametrize("task", ["math", "search"])
@pytest.mark.parametrize("place", [0, 1])
def test_published_averages_are_those_of_the_benchmarks(task, place):
    seen = 0
    for setting in drmas.table(1 if task == "math" else 2, "published"):
        found = setting.published
        whole = (found.average, found.passed)[place]
        assert fmean(of[place] for of in found.by_source.values()) == pytest.approx(whole, abs=0.11)
        seen += 1
    assert seen == 10


@pytest.mark.parametrize(("number", "task"), [(1, "math"), (2, "search")])
def test_published_gains_are_ratios_of_averages_over_teams(number, task):
    rows = [s for s in drmas.table(number, "published") if s.weights != "one"]
    for place, gain in enumerate(GAINS[task]):
        grpo, ours = (
            fmean((s.published.average, s.published.passed)[place]
                  for s in rows if s.algorithm == algorithm)
            for algorithm in ("grpo", "drmas")
        )  # fmt: skip
        assert ours / grpo == pytest.approx(gain, abs=6e-4)


def test_the_corners_of_the_ablation_are_rows_of_table_2():
    corners = {s.algorithm: s.published for s in drmas.table(3, "published")}
    assert corners.keys() == {"grpo", "drmas", "agent_mean", "agent_std"}
    for algorithm in ("grpo", "drmas"):
        row = find_published("search", "Qwen/Qwen2.5-7B", "own", algorithm)
        assert (corners[algorithm].average, corners[algorithm].passed) == (row.average, row.passed)
    assert len(ABLATION) == 4


def test_the_paper_has_eight_teams_for_maths_and_eight_for_search():
    for number in (1, 2):
        teams = [s for s in drmas.table(number, "published") if s.weights != "one"]
        assert len({(s.base, s.weights, s.algorithm) for s in teams}) == 8


PUBLISHED = sorted(every("published"))


@pytest.mark.parametrize("name", leave_to_evidence(PUBLISHED, keep=PUBLISHED[::8]))
def test_a_published_setting_is_what_the_paper_says(name):
    setting = every("published")[name]
    config = Config.model_validate(setting.config)
    assert config.evaluation.sampling.temperature == 0.6
    assert config.evaluation.sampling.top_p == 0.95
    assert (config.evaluation.samples, config.evaluation.k) == (16, 16)
    assert config.rollout.group_size == (8 if setting.task == "math" else 5)
    assert {p.optimizer.lr for p in config.policies.values()} == {1e-6}
    assert len(config.environment.options["test"]) == (6 if setting.task == "math" else 7)
    assert setting.config["trainer"] == {"epochs": 2 if setting.task == "math" else 1}
    agents = len(config.team)
    assert agents == (1 if setting.weights == "one" else 2 if setting.task == "math" else 3)
    assert len(config.policies) == (agents if setting.weights == "own" else 1)
    if setting.kind != "mixed":
        assert set(trained(setting).values()) == {setting.base}


@pytest.mark.parametrize("size", leave_to_evidence(["small", "published"], keep=[]))
def test_rows_of_one_table_differ_by_the_comparison_alone(size):
    for part, number in PARTS:
        for setting in part(number, size):
            options = setting.config["algorithm"]
            if setting.algorithm == "untrained":
                continue
            of = dict(drmas.ALGORITHMS[setting.algorithm])
            assert options.items() >= of.items()
            rest = {k: v for k, v in options.items() if k not in of}
            other = next(s for s in part(number, size) if s.algorithm != "untrained")
            theirs = dict(drmas.ALGORITHMS[other.algorithm])
            assert rest == {k: v for k, v in other.config["algorithm"].items() if k not in theirs}


def test_two_models_are_the_larger_router_and_smaller_others():
    one, two = drmas.figure(4, "published")
    assert set(trained(one).values()) == {"Qwen/Qwen2.5-7B"}
    small = "meta-llama/Llama-3.2-3B-Instruct"
    assert trained(two) == {"verifier": "Qwen/Qwen2.5-7B", "searcher": small, "answerer": small}
    assert one.config["prices"]["searcher"] == {"prompt": 0.30, "completion": 0.30}
    assert two.config["prices"]["searcher"] == {"prompt": 0.06, "completion": 0.06}
    assert two.config["prices"]["verifier"] == {"prompt": 0.30, "completion": 0.30}


def test_what_stands_in_two_tables_is_trained_once():
    assert {"grpo", "drmas"} <= {s.algorithm for s in drmas.table(3, "small")}
    both = {s.name for s in drmas.table(2, "small")} & {s.name for s in drmas.table(3, "small")}
    assert len(both) == 2
    assert len(every("small")) == 32
    assert all(s.algorithm in ALGORITHMS for s in every("small").values())
