"""`rolecall simulate`: what it finds, what it prints, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rolecall.core.errors import ConfigError
from rolecall_lab.simulate.costs import Costs, EngineCosts, LearnerCosts, PublishCosts, line
from rolecall_lab.simulate.measured import Measured, read_measured
from rolecall_lab.simulate.run import Placement
from rolecall_lab.simulate.sizes import sizes
from rolecall_lab.simulate.splits import Search, add_failures, outcome, splits
from rolecall_lab.simulate.workload import Workload
from tests.lab.simulate.runs_for_tests import TRUE, write_run
from tests.lab.simulate.test_known_times import episode
from tests.toy import command, solo_config, write

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "examples/nemo_rl_30b_a3b.yaml"


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("simulate") / "run", model_folder)


def found(capsys, *arguments: object) -> dict:
    assert command("simulate", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys, *arguments: object) -> str:
    """The one line that a bad input gets."""
    assert command("simulate", *arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_a_run_is_simulated_as_it_was(run, capsys):
    told = found(capsys, run)
    assert told["simulated_step_s"] == pytest.approx(told["measured_step_s"], rel=0.02)
    assert told["engine"]["passes"][0][1] == pytest.approx(TRUE.engine.passes[0][1], rel=0.05)
    [placed] = told["placements"]
    assert placed["placement"] == {"engines": 1, "ranks": 1, "together": True, "staleness": 0}


def test_overrides_change_what_a_step_does(run, capsys):
    as_it_was = found(capsys, run)["placements"][0]
    twice = found(capsys, run, "rollout.groups=12")["placements"][0]
    assert twice["update_s"] == pytest.approx(2 * as_it_was["update_s"], rel=0.25)
    short = found(capsys, run, "team.solver.sampling.max_tokens=2")["placements"][0]
    assert short["rollout_s"] < as_it_was["rollout_s"] / 3


def test_each_number_of_gpus_has_four_ways_and_the_fastest_has_a_star(run, capsys):
    assert command("simulate", run, "--gpus", "2..8", "--json", run / "x.json") == 0
    printed = capsys.readouterr().out
    told = json.loads((run / "x.json").read_text())["placements"]
    assert [one["gpus"] for one in told] == [2] * 4 + [4] * 4 + [8] * 4
    assert [one["placement"]["staleness"] for one in told[:4]] == [0, 0, 1, 4]
    assert printed.count("*") == 3 + 1, "one for each number, and the line that explains it"
    for one in told:
        place = one["placement"]
        used = max(place["engines"], place["ranks"])
        assert (used if place["together"] else place["engines"] + place["ranks"]) == one["gpus"]
    fastest = [min(o["step_s"] for o in told if o["gpus"] == n) for n in (2, 4, 8)]
    assert fastest == sorted(fastest, reverse=True)


def test_failures_cost_time(run, capsys):
    told = found(capsys, run, "--gpus", "8", "--mtbf-hours", "100", "--restart-s", "60")
    for one in told["placements"]:
        assert 0 < one["lost_share"] < 1
        assert one["real_step_s"] > one["step_s"]
    often = found(capsys, run, "--gpus", "8", "--mtbf-hours", "0.001")["placements"]
    assert all(one["real_step_s"] is None for one in often)
    assert {one["bottleneck"] for one in often} == {"faults"}


COSTS = Costs(EngineCosts(line(0.0, 0.5)), LearnerCosts(token_s=0.5, batch_tokens=1))
WORK = Workload([[episode(10)]], 24, 1)  # 120 s of sampling on one engine, 120 s of training


def test_the_best_split_is_the_one_that_a_person_would_compute():
    """With three times as much sampling as training, six of eight GPUs sample."""
    thrice = Costs(EngineCosts(line(0.0, 1.5)), COSTS.learner)
    best = Search(WORK, thrice).best(8, 1)
    assert (best.placement.engines, best.placement.ranks) == (6, 2)
    assert best.step_s == pytest.approx(60.0, rel=0.05)
    equal = Search(WORK, COSTS).best(8, 1)
    assert (equal.placement.engines, equal.placement.ranks) == (4, 4)


def test_taking_turns_beats_waiting_apart():
    search = Search(WORK, COSTS)
    assert search.taking_turns(8).step_s == pytest.approx(30.0)
    assert search.best(8, 0).step_s == pytest.approx(60.0)


def test_engines_of_several_gpus_and_learners_that_need_some_leave_fewer_splits():
    costs = Costs(EngineCosts(line(1.0, 0.0), gpus=4), LearnerCosts(1.0, least_ranks=6))
    assert splits(8, costs) == []
    assert splits(16, costs) == [Placement(1, 12), Placement(2, 8)]
    assert Search(WORK, costs).taking_turns(4) is None


@pytest.mark.parametrize(
    ("costs", "wanted"),
    [
        (Costs(EngineCosts(line(0.0, 0.5)), LearnerCosts(0.0)), "sampling"),
        (Costs(EngineCosts(line(0.5, 0.0)), LearnerCosts(0.0)), "longest episode"),
        (Costs(EngineCosts(line(0.0, 0.1)), LearnerCosts(1.0)), "update"),
        (Costs(EngineCosts(line(0.0, 0.1)), LearnerCosts(0.0), PublishCosts(1e3)), "publication"),
    ],
)
@pytest.mark.parametrize("staleness", [0, 1])
def test_what_is_waited_for_is_named(costs, wanted, staleness):
    placement = Placement(1, 1, staleness=staleness)
    assert outcome(WORK, costs, placement, gpus=2).bottleneck == wanted


def test_lost_time_is_what_a_failure_costs_as_often_as_gpus_fail():
    costs = Costs(EngineCosts(line(0.0, 0.5)), LearnerCosts(0.0), restart_s=100.0, save_every=1)
    turns = outcome(WORK, costs, Placement(1, 1, together=True), gpus=1)
    lost = add_failures(turns, WORK, costs, mtbf_hours=10.0)
    # Of the rollout under way half is lost at most: its rows begin again.
    assert 100 / 36_000 <= lost.lost_share <= (100 + 120) / 36_000
    assert lost.real_step_s == pytest.approx(lost.step_s / (1 - lost.lost_share))


def test_an_engine_is_missed_for_as_long_as_it_takes_to_restart():
    """Steps of 0.3 s, four of which are simulated; each of four engines is a quarter of them."""
    costs = Costs(EngineCosts(line(0.0, 0.005)), LearnerCosts(0.0), restart_s=100.0)
    apart = outcome(WORK, costs, Placement(4, 1, staleness=1), gpus=5)
    learner_s = 100.0  # and a little of sampling
    lost = add_failures(apart, WORK, costs, mtbf_hours=10.0).lost_share
    assert lost * 36_000 == pytest.approx(4 * 25.0 + learner_s, rel=0.02)


def test_sizes_are_a_number_a_list_or_doublings():
    assert sizes("8") == [8]
    assert sizes("64,8,16") == [8, 16, 64]
    assert sizes("8..1024") == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert sizes("8..48") == [8, 16, 32, 48]


@pytest.mark.parametrize("text", ["0", "1024..8", "0..8", "-8", "8,", "many", "8..", "1000000"])
def test_what_is_no_number_of_gpus_is_refused(text, capsys):
    line = complaint(capsys, "math", f"--gpus={text}")
    assert line.startswith(f"rolecall: --gpus: '{text}' is no number of GPUs")
    assert line.endswith("write 8, a list 8,16,64, or doublings 8..1024")


def test_a_config_without_figures_is_refused(capsys):
    line = complaint(capsys, "math", "--gpus", "8")
    assert "which says nothing of times: name the folder of a run" in line
    assert "--measured FILE" in line


def test_a_run_without_steps_is_refused(run, tmp_path, capsys):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/config.yaml").write_text((run / "config.yaml").read_text())
    assert "has done no step yet" in complaint(capsys, tmp_path / "new")


def test_a_run_without_episodes_is_refused(run, tmp_path, capsys):
    (tmp_path / "bare/episodes").mkdir(parents=True)
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / "bare" / name).write_text((run / name).read_text())
    assert "has no episodes with tokens" in complaint(capsys, tmp_path / "bare")


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert "there is no run folder" in complaint(capsys, tmp_path / "none")


def test_longer_answers_than_were_ever_seen_are_refused(model_folder, tmp_path, capsys):
    cut = write_run(tmp_path / "run", model_folder, longest=5)
    line = complaint(capsys, cut, "team.solver.sampling.max_tokens=50")
    assert "team.solver.sampling.max_tokens" in line
    assert "were cut at 5, so nobody knows how long they are at 50" in line


def test_too_few_gpus_are_refused(capsys):
    line = complaint(capsys, "math", "--measured", FIGURES, "--gpus", "4")
    assert "an engine has 2 GPUs and learners need 8; 4 are too few" in line


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"training": {"tokens_per_s": -5}}, "training.tokens_per_s: "),
        ({"training": {}}, "training.tokens_per_s: "),
        ({"sampling": {"tokens_per_s": {8: 100}}}, "sampling.tokens_per_s: "),
        ({"sampling": {"tokens_per_s": {0: 1, 8: 100}}}, "sampling.tokens_per_s"),
        ({"publication": {"gb": 3}}, "gb needs gb_per_s"),
        ({"speed": 3}, "speed: unknown key"),
    ],
)
def test_wrong_figures_are_named(change, wanted, tmp_path, capsys):
    file = write(tmp_path / "figures.yaml", yaml.safe_load(FIGURES.read_text()) | change)
    line = complaint(capsys, "math", "--measured", file, "--gpus", "64")
    assert line.startswith("rolecall: figures.yaml"), line
    assert wanted in line


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "12"])
def test_a_file_without_figures_is_refused(text, tmp_path, capsys):
    (tmp_path / "figures.yaml").write_text(text)
    line = complaint(capsys, "math", "--measured", tmp_path / "figures.yaml")
    assert line.startswith("rolecall: --measured: ")
    assert "no file" not in line


def test_figures_become_costs_that_give_them_back():
    figures = read_measured(FIGURES)
    engine = figures.costs.engine
    for rows, rate in figures.sampling.tokens_per_s.items():
        assert rows / engine.pass_s(rows) == pytest.approx(rate)
    assert figures.costs.publish.seconds == pytest.approx(61 / 8.25)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_measured(Path("nowhere.yaml"))


def test_drawn_lengths_have_their_mean_and_their_limit():
    groups = read_measured(FIGURES).episodes.groups(32, seed=0)
    answers = [turn.tokens for group in groups for one in group for turn in one.turns]
    assert sum(answers) / len(answers) == pytest.approx(3155, rel=0.02)
    assert max(answers) == 3946


def test_published_figures_are_as_near_as_the_page_says(capsys):
    """One is fitted; the others deviate by what docs/simulate.md says, no less and no more."""
    figures = read_measured(FIGURES)
    work = Workload(figures.episodes.groups(32, seed=0), 64, 32, 100_000)
    near = {
        (Placement(8, 16, staleness=1), 152.0): 0.0,
        (Placement(16, 32, together=True), 192.0): -0.19,
    }
    for (placement, known), off in near.items():
        step_s = outcome(work, figures.costs, placement, gpus=32).step_s
        assert step_s / known - 1 == pytest.approx(off, abs=0.02)


def test_figures_go_with_the_lengths_of_a_run(run, capsys):
    told = found(capsys, run, "--measured", FIGURES, "--gpus", "16")
    assert told["measured_step_s"] is None
    assert told["engine"]["gpus"] == 2
    tokens = told["placements"][0]["tokens_per_s"] * told["placements"][0]["step_s"]
    assert 500 < tokens < 1500, "24 episodes of about 40 tokens"


def test_a_config_of_figures_may_have_any_team(model_folder, tmp_path, capsys):
    config = write(tmp_path / "team.yaml", solo_config(model_folder))
    told = found(capsys, config, "--measured", FIGURES, "--gpus", "32")
    assert len(told["placements"]) == 4


def test_the_search_finds_what_trying_all_splits_finds():
    work = Workload([[episode(5), episode(40), episode(11)]], 16, 3)
    for row_s, token_s in ((0.5, 0.1), (0.1, 0.5), (0.02, 0.02)):
        costs = Costs(EngineCosts(line(0.01, row_s)), LearnerCosts(token_s, batch_tokens=20))
        for staleness in (0, 1):
            best = Search(work, costs).best(12, staleness)
            tried = [
                outcome(work, costs, Placement(n, 12 - n, staleness=staleness), gpus=12)
                for n in range(1, 12)
            ]
            assert best.step_s <= 1.05 * min(one.step_s for one in tried)


def test_the_page_shows_the_figures_as_they_are():
    assert FIGURES.read_text().rstrip() in (ROOT / "docs/simulate.md").read_text()


def test_the_page_names_every_key_of_figures():
    page = (ROOT / "docs/simulate.md").read_text()
    for name, key in Measured.model_fields.items():
        inner = getattr(key.annotation, "model_fields", {})
        for full in [f"{name}.{part}" for part in inner] or [name]:
            assert f"`{full}`" in page, full
