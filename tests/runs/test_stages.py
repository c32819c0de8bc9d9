"""Stages: one config after the other, each with the weights of the one before."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import rolecall
from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.runs.first_weights import load_first_weights
from rolecall.runs.stage_list import read
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.setup.stage_handover import Carried
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from tests.support.evidence import leave_to_evidence
from tests.toy import command, solo_config, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

MOMENTS = leave_to_evidence(["fresh", "carried"], keep=["carried"])


def staged(folder, *stages, **changes):
    """A solver that collects what it says, imitates it, and goes on with RL."""
    config = solo_config(folder, evaluation={"tasks": 2, "samples": 2, "k": 2}, **changes)
    return config | {"stages": list(stages)}


DEMOS = {"name": "demos", "collect": {"best_of": 1}}
WARM = {"name": "warm", "from": "demos", "algorithm": "sft", "trainer": {"steps": 2}}
RL = {"name": "rl", "trainer": {"steps": 3}}
FINAL = {"name": "final", "evaluate": True, "evaluation": {"tasks": 3}}


def weights(run: Path, stage: str, *, base: bool = False) -> dict[str, torch.Tensor]:
    """Of the policy `a`: what a stage came to, or what it began with."""
    folder = run / stage
    if base:
        return load_file(
            Path(load(folder / "config.yaml").policies["a"].base) / "model.safetensors"
        )
    latest = (folder / "checkpoints/latest").read_text().strip()
    return load_file(next((folder / "checkpoints" / latest / "a").glob("*model.safetensors")))


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def moments(run: Path, stage: str) -> list[float]:
    """How many steps each parameter's moments have seen."""
    latest = (run / stage / "checkpoints/latest").read_text().strip()
    state = torch.load(run / stage / "checkpoints" / latest / "a/learner.pt", weights_only=True)
    return sorted({float(one["step"]) for one in state["stepper"]["optimizer"]["state"].values()})


@pytest.fixture(scope="module")
def straight(model_folder, tmp_path_factory):
    """A run of four stages that nothing interrupted."""
    folder = tmp_path_factory.mktemp("stages")
    config = write(folder / "c.yaml", staged(model_folder, DEMOS, WARM, RL, FINAL))
    assert command("train", config, "--output", folder / "run") == 0
    return config, folder / "run"


def test_each_stage_begins_with_the_weights_of_the_one_before(straight, model_folder):
    _, run = straight
    begun = load_file(model_folder / "model.safetensors")
    warm, rl = weights(run, "warm"), weights(run, "rl")
    assert equal(weights(run, "rl", base=True), warm)
    assert not equal(warm, begun)
    assert not equal(rl, warm)
    summary = json.loads((run / "summary.json").read_text())["stages"]
    assert [(stage["name"], stage["kind"]) for stage in summary] == [
        ("demos", "collect"), ("warm", "train"), ("rl", "train"), ("final", "evaluate"),
    ]  # fmt: skip
    demos, trained, after, final = summary
    assert demos["rows"] == len((run / "demos/data.jsonl").read_text().splitlines()) == 3
    assert trained["after"]["avg@2"] == after["before"]["avg@2"]
    played, copied = run / "warm/evaluation-000002.parquet", run / "rl/evaluation-000000.parquet"
    assert played.read_bytes() == copied.read_bytes()  # times of a second one would differ
    assert final["after"]["num_tasks"] == 3
    assert moments(run, "rl") == [3.0]
    page = (run / "report.html").read_text()
    assert all(f">{stage['name']}<" in page for stage in summary)
    assert '<a href="rl/report.html">' in page


def test_a_finished_run_does_nothing_again_and_its_file_stands_for_itself(straight, capsys):
    config, run = straight
    written = {path: path.stat().st_mtime_ns for path in run.glob("*/metrics.jsonl")}
    assert len(written) == 3
    for source in (run, config):
        assert command("train", source, *(["--output", run] if source == config else [])) == 0
        assert capsys.readouterr().out.count("is finished") == 4
        assert {path: path.stat().st_mtime_ns for path in written} == written


def killed_when(config: Path, run: Path, sign: Path) -> None:
    """Train in a process of its own, and kill it as soon as a file is there."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    arguments = [sys.executable, "-m", "rolecall", "train", str(config), "--output", str(run)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 100
        while not sign.exists():
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < until
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.evidence
def test_a_run_that_is_killed_goes_on_in_the_stage_and_step_where_it_stopped(straight, tmp_path):
    config, whole = straight
    run = tmp_path / "run"
    killed_when(config, run, run / "rl/checkpoints/step-1")
    assert not (run / "rl/summary.json").exists()
    before = (run / "warm/metrics.jsonl").stat().st_mtime_ns
    assert command("train", run) == 0
    assert (run / "warm/metrics.jsonl").stat().st_mtime_ns == before
    assert "resumed step=" in (run / "rl/log.txt").read_text()
    assert equal(weights(run, "rl"), weights(whole, "rl"))
    steps = [r["step"] for r in RunFolder(run / "rl").read_metrics() if r["kind"] == "step"]
    assert steps == [1, 2, 3]
    assert (run / "final/summary.json").exists()


@pytest.mark.evidence
def test_moments_are_carried_where_they_are_asked_for(model_folder, tmp_path):
    first = {"name": "one", "trainer": {"steps": 2}}
    second = {"name": "two", "trainer": {"steps": 1}, "optimizer": "carried"}
    config = write(tmp_path / "c.yaml", staged(model_folder, first, second))
    assert command("train", config, "--output", tmp_path / "run", "evaluation.tasks=0") == 0
    assert moments(tmp_path / "run", "one") == [2.0]
    assert moments(tmp_path / "run", "two") == [3.0]
    assert equal(weights(tmp_path / "run", "two", base=True), weights(tmp_path / "run", "one"))


@pytest.mark.evidence
@pytest.mark.parametrize("optimizer", MOMENTS)
def test_adapters_are_carried(model_folder, tmp_path, optimizer):
    policy = {"base": str(model_folder), "adapter": {"rank": 4}, "optimizer": {"lr": 1e-3}}
    still = {"policies": {"a": {"optimizer": {"lr": 1e-12}}}, "trainer": {"steps": 1}}
    stages = [
        {"name": "one", "trainer": {"steps": 2}},
        {"name": "two", "optimizer": optimizer, **still},
        {"name": "look", "evaluate": True},
    ]
    config = write(tmp_path / "c.yaml", staged(model_folder, *stages, policies={"a": policy}))
    assert command("train", config, "--output", tmp_path / "run") == 0
    one, two = weights(tmp_path / "run", "one"), weights(tmp_path / "run", "two")
    assert all(torch.allclose(one[key], two[key], atol=1e-9) for key in one)
    assert any(bool(one[key].any()) for key in one if "lora_B" in key)
    assert moments(tmp_path / "run", "two") == [3.0 if optimizer == "carried" else 1.0]
    assert load(tmp_path / "run/two/config.yaml").policies["a"].base == str(model_folder)
    summary = json.loads((tmp_path / "run/summary.json").read_text())["stages"]
    assert summary[2]["after"]["avg@2"] == summary[1]["after"]["avg@2"]


@pytest.mark.evidence
def test_the_weights_that_a_stage_began_with_are_found_again(model_folder, tmp_path):
    policy = {"base": str(model_folder), "adapter": {"rank": 4}, "optimizer": {"lr": 1e-3}}
    stages = [{"name": "one", "trainer": {"steps": 2}}, {"name": "two", "trainer": {"steps": 1}}]
    config = write(tmp_path / "c.yaml", staged(model_folder, *stages, policies={"a": policy}))
    assert command("train", config, "--output", tmp_path / "run") == 0
    folder = RunFolder.existing(tmp_path / "run")
    run = build(validate(load(folder.config)))
    load_first_weights(run, folder)
    run.learners["a"].save(tmp_path / "began")
    began = load_file(next((tmp_path / "began").glob("*model.safetensors")))
    assert equal(began, weights(tmp_path / "run", "one"))
    assert not equal(began, weights(tmp_path / "run", "two"))


@pytest.mark.evidence
def test_an_adapters_reference_is_what_an_earlier_stage_made_of_it(model_folder, tmp_path):
    """Not the base without it: preferences are measured from the weights that a warm start left."""
    policy = {"base": str(model_folder), "adapter": {"rank": 4}, "optimizer": {"lr": 3e-3}}
    refer = {"policies": {"a": {"reference": "initial"}}}
    stages = [
        DEMOS,
        WARM,
        {"name": "spin", "from": "demos", "algorithm": "spin", "trainer": {"steps": 2}, **refer},
    ]
    config = write(tmp_path / "c.yaml", staged(model_folder, *stages, policies={"a": policy}))
    assert command("train", config, "--output", tmp_path / "run", "evaluation.tasks=0") == 0
    first, second = RunFolder(tmp_path / "run/spin").read_metrics()
    assert first["agent/solver/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert second["agent/solver/loss"] != pytest.approx(math.log(2), abs=1e-6)


def begun(folder, number):
    """A stage of a run as it begins, with what it says of its critics."""
    carried, parts = Carried(), read(folder / "c.yaml", [])
    for part in parts[:number]:
        latest = checkpoint.follow_pointer(
            RunFolder(folder / "run" / part.name).checkpoints, checkpoint.LATEST
        )
        carried.add(part.config, part.name, latest)
    declared = parts[number].config
    config = declared.model_copy(deep=True)
    carried.apply(config)
    run = build(validate(config))
    return run, carried.begin(run, declared, parts[number].stage)


def critic_config(folder, name, algorithm, **options):
    """Two steps with a critic; stages go on with it."""
    section = {"optimizer": {"lr": 1e-2}, **options}
    return {"algorithm": algorithm, "critics": {name: section}, "trainer": {"steps": 2}}


@pytest.mark.evidence
@pytest.mark.parametrize("optimizer", MOMENTS)
def test_critics_go_on_from_the_stage_before(model_folder, tmp_path, optimizer):
    mappo = critic_config(model_folder, "team", "mappo", base=str(model_folder))
    stages = [{"name": "one"}, {"name": "two", "optimizer": optimizer}]
    config = staged(model_folder, *stages, **mappo) | {"evaluation": {"tasks": 0}}
    write(tmp_path / "c.yaml", config)
    assert command("train", tmp_path / "c.yaml", "--output", tmp_path / "run") == 0
    run, said = begun(tmp_path, 1)
    assert said == ["critics.team of solver goes on from stage 'one'"]
    [critic] = run.critics.values()
    latest = checkpoint.follow_pointer(tmp_path / "run/one/checkpoints", checkpoint.LATEST)
    saved = torch.load(latest / "critic.team.solver/critic.pt", weights_only=True)
    assert equal(critic.head.state_dict(), saved["head"])
    assert critic.head.state_dict()["weight"].any()
    weights = load_file(latest / "critic.team.solver/model.safetensors")
    mine = dict(critic.model.named_parameters())
    assert all(torch.equal(mine[name], weights[name]) for name in mine.keys() & weights.keys())
    assert not equal(weights, load_file(model_folder / "model.safetensors"))
    assert [critic.moments.mean, critic.moments.square, critic.moments.weight] == saved["moments"]
    assert critic.stepper.num_steps == 0
    assert bool(critic.stepper.optimizer.state) == (optimizer == "carried")


@pytest.mark.evidence
def test_value_heads_go_on_where_there_are_as_many(model_folder, tmp_path):
    ppo = critic_config(model_folder, "agent", "ppo")
    other = {"critics": {"agent": {"heads": 2}}}
    stages = [{"name": "one"}, {"name": "two"}, {"name": "three", **other}]
    config = staged(model_folder, *stages, **ppo) | {"evaluation": {"tasks": 0}}
    write(tmp_path / "c.yaml", config)
    assert command("train", tmp_path / "c.yaml", "--output", tmp_path / "run") == 0
    run, said = begun(tmp_path, 1)
    assert said == ["critics.agent of policy a goes on from stage 'one'"]
    learner = run.learners["a"]
    latest = checkpoint.follow_pointer(tmp_path / "run/one/checkpoints", checkpoint.LATEST)
    saved = torch.load(latest / "a/learner.pt", weights_only=True)
    assert equal(learner.head.state_dict(), saved["head"])
    assert saved["head"]["weight"].any()
    assert (learner.head_stepper.num_steps, learner.version) == (0, 0)
    run, said = begun(tmp_path, 2)
    assert said == ["critics.agent of policy a begins anew: stage 'two' had 1 heads"]
    assert not run.learners["a"].head.state_dict()["weight"].any()


@pytest.mark.evidence
def test_a_critic_that_is_another_one_begins_anew_and_says_why(model_folder, tmp_path, capsys):
    """ReAd's critic has one value for the team; an evaluation refines with what was learned."""
    from tests.conftest import make_model

    make_model(tmp_path / "other", "qwen3", seed=5)
    team = {"base": str(model_folder), "optimizer": {"lr": 1e-2}}
    elsewhere = {"critics": {"team": {"base": str(tmp_path / "other")}}}
    read_ = {"algorithm": {"name": "read", "epsilon": 1e-3, "max_refine": 1}}
    stages = [
        {"name": "one"},
        {"name": "two", **read_},
        {"name": "three", **read_, "evaluate": True},
        {"name": "four", **elsewhere},
    ]
    given = {"algorithm": "mappo", "critics": {"team": team}, "trainer": {"steps": 1}}
    write(tmp_path / "c.yaml", staged(model_folder, *stages, **given))
    assert command("train", tmp_path / "c.yaml", "--output", tmp_path / "run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("critics.")] == [
        "critics.team of solver begins anew: stage 'one' had one of another kind, JointCritic",
        "critics.team of solver goes on from stage 'two'",
        "critics.team of solver begins anew: stage 'two' had another base",
    ]


@pytest.mark.parametrize("optimizer", ["fresh", "carried"])
def test_shards_refuse_adapters_and_moments_of_another_stage(
    model_folder, tmp_path, capsys, optimizer
):
    small = {"policies": {"a": {"adapter": {"rank": 4}}}} if optimizer == "fresh" else {}
    sharded = {"learner": {"name": "fsdp", "ranks": 2}, "engine": {"separate_weights": True}}
    stages = [{"name": "one", **small}, {"name": "two", "optimizer": optimizer, **small, **sharded}]
    config = write(tmp_path / "c.yaml", staged(model_folder, *stages))
    assert command("train", config, "--output", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1, error
    assert (
        "policies.a.learner: fsdp cannot go on from the adapter or the moments of stage 'one'; "
        "write replicated" in error
    )
    assert not (tmp_path / "run").exists()


def test_a_stage_collects_what_an_earlier_one_has_played(model_folder, tmp_path):
    kept = {"name": "kept", "from": "rl", "collect": {"agents": ["solver"]}}
    config = write(tmp_path / "c.yaml", staged(model_folder, RL | {"trainer": {"steps": 2}}, kept))
    assert command("train", config, "--output", tmp_path / "run", "evaluation.tasks=0") == 0
    rows = (tmp_path / "run/kept/data.jsonl").read_text().splitlines()
    assert {json.loads(row)["id"].partition(":")[0] for row in rows} == {"1", "2"}
    assert len(rows) == 24


def test_a_stage_that_names_another_base_starts_anew(model_folder, tmp_path):
    other = tmp_path / "other"
    from tests.conftest import make_model

    make_model(other, "qwen3", seed=5)
    stages = [
        {"name": "one", "trainer": {"steps": 1}},
        {"name": "two", "trainer": {"steps": 1}, "policies": {"a": {"base": str(other)}}},
    ]
    config = write(tmp_path / "c.yaml", staged(model_folder, *stages))
    assert command("train", config, "--output", tmp_path / "run", "evaluation.tasks=0") == 0
    assert load(tmp_path / "run/two/config.yaml").policies["a"].base == str(other)


def test_overrides_are_for_all_stages_or_for_one(model_folder, tmp_path):
    file = write(tmp_path / "c.yaml", staged(model_folder, WARM | {"from": None}, RL))
    one = load(file, ["trainer.seed=7", "stages.rl.trainer.steps=9", "stage=rl"])
    assert (one.trainer.seed, one.trainer.steps, one.algorithm.name) == (7, 9, "drmas")
    other = load(file, ["trainer.seed=7", "stages.rl.trainer.steps=9", "stage=warm"])
    assert (other.trainer.seed, other.trainer.steps, other.algorithm.name) == (7, 2, "sft")
    assert load(file, ["trainer.steps=5", "stage=warm"]).trainer.steps == 5


def test_an_empty_section_of_a_stage_clears_it(model_folder, tmp_path):
    rewards = {"rewards": {"correct": 1.0, f"{ROOT}/tests/toy.py:wordy": 1.0}}
    stages = [{"name": "one"}, {"name": "two", "rewards": {}}]
    file = write(tmp_path / "c.yaml", staged(model_folder, *stages, **rewards))
    assert len(load(file, ["stage=one"]).rewards) == 2
    assert load(file, ["stage=two"]).rewards == {}


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([DEMOS, WARM | {"from": "other"}], "stages.1.from: no stage 'other' before this one"),
        ([WARM, DEMOS], "stages.0.from: no stage 'demos' before this one collects"),
        ([RL, RL], "stages.1.name: two stages are called 'rl'"),
        ([RL | {"optimiser": "fresh"}], "stages.0.optimiser: unknown key; did you mean optimizer?"),
        ([RL | {"rollout": {"grops": 1}}], "rollout.grops: unknown key; did you mean groups"),
        ([RL | {"output": "x"}], "stages.0.output: a stage has no output"),
        ([RL | {"optimizer": "carried"}], "stages.0.optimizer: there are no moments to carry"),
        ([{"algorithm": "sft"}], "stages.0.name: missing"),
        (["rl"], "stages.0: write a mapping with a name"),
        ([RL | {"name": "a/b"}], "stages.0.name: String should match"),
        ([DEMOS | {"collect": {"pairs": True, "best_of": 2}}], "best_of has no effect on pairs"),
        ([DEMOS | {"collect": {"agents": ["x"]}}], "collect.agents: no trained agent 'x'"),
        ([DEMOS | {"collect": {"pairs": True}}, WARM], "from: stage 'demos' collects preferences"),
        ([DEMOS | {"evaluate": True}], "stages.0.evaluate: it collects already"),
        ([FINAL | {"from": "demos"}], "stages.0.from: an evaluation takes nothing"),
        ([FINAL | {"evaluation": {"tasks": 0}}], "evaluation.tasks: 0 leaves nothing to evaluate"),
    ],
)
def test_a_wrong_stage_is_one_line_with_its_place_before_anything_runs(
    model_folder, tmp_path, capsys, stages, said
):
    config = write(tmp_path / "c.yaml", staged(model_folder, *stages))
    assert command("train", config, "--output", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1, error
    assert said in error
    line = int(error.partition("c.yaml:")[2].partition(":")[0])
    assert line > config.read_text().splitlines().index("stages:") + 1
    assert not (tmp_path / "run").exists()


def test_a_problem_that_all_stages_have_is_told_once(model_folder, tmp_path, capsys):
    config = staged(model_folder, RL, RL | {"name": "more"}) | {"algorithm": "drmass"}
    assert command("train", write(tmp_path / "c.yaml", config), "--output", tmp_path / "run") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "(stage" not in line


def test_an_adapter_and_whole_weights_do_not_follow_one_another_unseen(
    model_folder, tmp_path, capsys
):
    small = {"policies": {"a": {"adapter": {"rank": 4}}}}
    for first, second, said in (
        (small, {}, "policies.a.adapter: stage 'one' trained another adapter"),
        ({}, small | {"optimizer": "carried"}, "their moments do not fit an adapter"),
    ):
        stages = [{"name": "one", **first}, {"name": "two", **second}]
        config = write(tmp_path / "c.yaml", staged(model_folder, *stages))
        assert command("train", config, "--output", tmp_path / "run") == 2
        assert said in capsys.readouterr().err


def test_what_other_commands_are_told_of_a_run_with_stages(straight, tmp_path, capsys):
    config, run = straight
    for arguments, said in (
        (["train", config, "stage=warm", "--output", run, "--resume"], "is a run with stages"),
        (["train", run / "rl"], f"continue the whole: rolecall train {run}"),
        (["eval", config], "for one alone write stage=NAME, with one of: demos, warm, rl, final"),
        (["eval", config, "stage=wram"], "stage=wram: no such stage; write one of: demos, warm"),
        (["train", config, "--output", run, "stages.nobody.trainer.steps=1"], "no stage 'nobody'"),
        (["train", run, "stages.warm.trainer.steps=4"], "has begun after stage 'warm' as it was"),
        (["train", run, "stages.demos.collect.best_of=2"], "has begun as stage 1 of another list"),
    ):
        assert command(*arguments) == 2
        error = capsys.readouterr().err
        assert len(error.strip().splitlines()) == 1, error
        assert said in error
    assert command("check", config) == 0
    out = capsys.readouterr().out
    assert [f"Stage {name}:" in out for name in ("demos", "warm", "rl", "final")] == [True] * 4
    assert command("eval", run / "rl") == 0


def test_a_run_with_stages_is_read_as_its_last_stage_that_trains(straight, tmp_path):
    _, run = straight
    assert rolecall.load_run(run).path == rolecall.load_run(run / "rl").path
    shutil.copytree(run, tmp_path / "begun", ignore=shutil.ignore_patterns("rl", "final"))
    assert rolecall.load_run(tmp_path / "begun").path == tmp_path / "begun/warm"
    shutil.copytree(run, tmp_path / "listed", ignore=shutil.ignore_patterns("config.yaml"))
    with pytest.raises(ConfigError, match="of which none has begun"):
        rolecall.load_run(tmp_path / "listed")


def test_training_on_an_empty_data_set_ends_the_run_before_the_stage_begins(
    model_folder, tmp_path, capsys
):
    none = {"name": "demos", "collect": {"least": 99}}
    config = write(tmp_path / "c.yaml", staged(model_folder, none, WARM))
    assert command("train", config, "--output", tmp_path / "run") == 2
    assert "rollout.data: " in capsys.readouterr().err
    assert not (tmp_path / "run/warm").exists()


def test_the_stages_of_the_page_fit(tmp_path):
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/stages.md").read_text(), re.DOTALL)
    names = []
    for example in examples:
        (tmp_path / "c.yaml").write_text(example)
        names.append([part.name for part in read(tmp_path / "c.yaml", [])])
    assert names == [["reflections", "student"], ["demos", "warm", "rl", "final"]]


def imitating(folder):
    """A stage whose agents imitate what the stage before has collected."""
    return {
        "name": "imitate", "from": "demos", "algorithm": {"name": "ma_airl", "shaping": 0.9},
        "critics": {"discriminator": {"base": str(folder)}},
    }  # fmt: skip


def test_a_stage_takes_the_demonstrations_of_another_as_experts(model_folder, tmp_path):
    demos = {"name": "demos", "collect": {}}
    file = write(tmp_path / "c.yaml", staged(model_folder, demos, imitating(model_folder)))
    assert command("check", file) == 0
    assert command("train", file, "--output", tmp_path / "run") == 0
    used = load(tmp_path / "run/imitate/config.yaml", []).algorithm.options["experts"]
    assert Path(used) == tmp_path / "run/demos/data.jsonl"


def test_preferences_are_no_experts(model_folder, tmp_path, capsys):
    pairs = {"name": "demos", "collect": {"pairs": True}}
    file = write(tmp_path / "c.yaml", staged(model_folder, pairs, imitating(model_folder)))
    assert command("check", file) == 2
    message = "stage 'demos' collects preferences, and ma_airl takes demonstrations"
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_stage_whose_data_is_not_there_yet_may_count_in_epochs(model_folder, tmp_path):
    warm = WARM | {"trainer": {"epochs": 2}}
    config = staged(model_folder, {"name": "demos", "collect": {}}, warm)
    assert command("check", write(tmp_path / "c.yaml", config)) == 0


def test_a_file_without_stages_has_none(model_folder, tmp_path):
    file = write(tmp_path / "c.yaml", solo_config(model_folder))
    with pytest.raises(ConfigError, match="stage=rl: the file has no stages"):
        load(file, ["stage=rl"])
