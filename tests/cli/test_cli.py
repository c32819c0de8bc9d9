"""What a user types, good and bad: exit status, and one clear line for what is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecall.cli import main
from rolecall.config.load import find, load
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.training.run import Run
from tests.support.evidence import leave_to_evidence
from tests.toy import command, relay_config, solo_config, write

pytestmark = pytest.mark.slow

PROGRESS = re.compile(r".*: \d:\d\d:\d\d")  # a line of what takes long, on a slow machine


def rolecall(*arguments: object, capsys) -> tuple[int, str, str]:
    """Run the command in this process: (status, stdout, stderr)."""
    status = command(*arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(*arguments: object, capsys) -> str:
    status, _, error = rolecall(*arguments, capsys=capsys)
    assert status == 2, error
    [line] = [line for line in error.strip().splitlines() if not PROGRESS.fullmatch(line)]
    assert "Traceback" not in line
    return line


@pytest.fixture
def config(model_folder, tmp_path) -> Path:
    return write(tmp_path / "team.yaml", relay_config(model_folder))


def test_info_lists_what_a_config_can_name(capsys):
    status, out, _ = rolecall("info", "--json", capsys=capsys)
    found = json.loads(out)
    assert status == 0
    assert {"grpo", "drmas"} <= set(found["algorithms"])
    assert {"single", "solver_verifier"} <= set(found["workflows"])
    assert "math" in found["environments"]
    assert "math" in found["recipes"]
    assert found["versions"]["torch"].startswith("2.")


def test_train_eval_and_show_work_together(config, tmp_path, capsys):
    run = tmp_path / "run"
    status, out, error = rolecall(
        "train", config, "trainer.steps=2", "trackers=[tensorboard]", "--output", run,
        "--json", tmp_path / "s.json", capsys=capsys,
    )  # fmt: skip
    assert status == 0, error
    summary = json.loads((run / "summary.json").read_text())
    assert json.loads((tmp_path / "s.json").read_text()) == summary
    assert (summary["steps"], summary["seed"]) == (2, 0)
    assert 0 <= summary["before"]["avg@2"] <= 1
    assert 0 <= summary["after"]["pass@2"] <= 1
    assert set(summary["agents"]) == {"left", "right", "last"}
    assert {"reward", "grad_norm_max", "grad_norm_median"} == set(summary["agents"]["last"])
    for name in ("curves.png", "report.html", "metrics.jsonl", "config.yaml", "log.txt"):
        assert (run / name).stat().st_size > 0
    assert "before" in out
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    for name, value in (("before", 0), ("after", -1)):
        tracked = events.Scalars("evaluation/avg@2")[value].value
        assert tracked == pytest.approx(summary[name]["avg@2"])
    assert [event.step for event in events.Scalars("evaluation/avg@2")] == [0, 2]
    assert len(events.Scalars("score")) == 2
    status, out, _ = rolecall("eval", run, "--json", capsys=capsys)
    assert status == 0
    assert json.loads(out)["avg@2"] == summary["after"]["avg@2"]
    status, out, _ = rolecall("show", run, capsys=capsys)
    assert status == 0
    assert "last" in out
    status, out, _ = rolecall("show", run, "--task", "test-0", "--json", capsys=capsys)
    assert status == 0
    assert len(json.loads(out)) == 2
    status, out, _ = rolecall("train", config, "trainer.steps=2", "--output", run, capsys=capsys)
    assert status == 0
    assert "is finished" in out


def test_greedy_evaluation_of_an_untrained_team_repeats(config, tmp_path, capsys):
    greedy = ["evaluation.greedy=true", "evaluation.samples=1", "evaluation.k=1"]
    found = []
    for seed in (0, 1):
        options = [*greedy, f"trainer.seed={seed}", "--json"]
        status, out, _ = rolecall("eval", config, *options, capsys=capsys)
        assert status == 0
        told = json.loads(out).items()
        found.append({name: value for name, value in told if not name.startswith("time/")})
    assert found[0] == found[1]
    assert found[0]["num_tasks"] == 2


def test_overrides_beat_the_file(config, tmp_path, capsys):
    run = tmp_path / "run"
    rolecall(
        "train", config, "trainer.steps=1", "algorithm=grpo", "algorithm.agg=token",
        "policies.a.optimizer.lr=1e-4", "--output", run, capsys=capsys,
    )  # fmt: skip
    text = (run / "config.yaml").read_text()
    assert "name: grpo" in text
    assert "agg: token" in text
    assert "lr: 0.0001" in text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.stepz=3", ["trainer.stepz", "steps"]),
        ("trainr.steps=3", ["trainr", "trainer"]),
        ("policies.a.optimiser.lr=1", ["policies.a.optimiser", "optimizer"]),
        ("policies.a.lr=1", ["policies.a.lr", "did you mean optimizer.lr?"]),
        ("team.left.temprature=1", ["did you mean sampling.temperature?"]),
        ("team.left.sampling.temprature=1", ["team.left.sampling.temprature", "temperature"]),
        ("trainer.steps=many", ["trainer.steps", "'many'"]),
        ("trainer.steps=0", ["trainer.steps", "0"]),
        ("trainer.steps=1e99", ["trainer.steps"]),
        ("trainer.seed=99999999999999999999", ["trainer.seed"]),
        ("policies.a.optimizer.lr=1e30", ["policies.a.optimizer.lr", "less than or equal to 10"]),
        ("policies.a.optimizer.lr=.nan", ["policies.a.optimizer.lr", "nan"]),
        ("policies.a.optimizer.clip=.inf", ["policies.a.optimizer.clip", "inf"]),
        ("policies.a.optimizer.weight_decay=1e999", ["policies.a.optimizer.weight_decay"]),
        ("policies.a.optimizer.eps=9e18", ["policies.a.optimizer.eps"]),
        ("policies.a.optimizer.betas=[0.9,1.0]", ["policies.a.optimizer.betas"]),
        ("rewards.correct=nan", ["rewards.correct"]),
        ("rewards.correct=.nan", ["rewards.correct"]),
        ("rewards.correct=1e300", ["rewards.correct"]),
        ("algorithm.clip_high=.inf", ["algorithm.clip_high"]),
        ("algorithm.entropy=1e30", ["algorithm.entropy"]),
        ("rollout.timeout_s=.inf", ["rollout.timeout_s"]),
        ("team.left.sampling.temperature=.inf", ["team.left.sampling.temperature"]),
        ("policies.a.optimizer.lr=fast", ["policies.a.optimizer.lr", "'fast'"]),
        ("rollout=5", ["rollout"]),
        ("team.left.policy=c", ["team.left.policy", "'c'"]),
        ("rollout.group_size=1", ["rollout.group_size", "1"]),
        ("algorithm=drmass", ["algorithm.name", "drmas"]),
        ("algorithm.klip=1", ["algorithm.klip", "clip_low"]),
        ("workflow=solver_verifyer", ["workflow.name", "solver_verifier"]),
        ("workflow=solver_verifier", ["calls solver, verifier", "left"]),
        ("workflow=nowhere.py:flow", ["workflow.name", "nowhere.py"]),
        ("environment=maths", ["environment.name", "math"]),
        ("environment.sise=3", ["environment.sise", "size"]),
        ("environment.size=big", ["environment.size", "big"]),
        ("rewards.correkt=1", ["correkt", "correct"]),
        ("policies.a.base=/no/such/folder", ["policies.a.base", "/no/such/folder"]),
        ("policies.a.base=tiny:nothing", ["policies.a.base", "tiny:nothing"]),
        ("trainer.max_staleness=1", ["trainer.max_staleness"]),
        ("team.left.sampling.top_p=0.5", ["team.left.sampling", "top_p"]),
        ("rollout.allow_filtered_sampling=true", ["no effect"]),
        ("team.left.invalid_penalty=0.1", ["team.left.invalid_penalty", "no effect"]),
        ("algorithm.turn_length=5", ["algorithm", "turn_length has no effect"]),
        ("evaluation.k=9", ["evaluation.k"]),
        ("policies.spare.base=tiny:math", ["policies.spare", "no agent"]),
        ("team.idle.policy=a", ["team.idle", "never calls"]),
        ("trackers=[wandbee]", ["trackers"]),
        ("nonsense", ["nonsense"]),
    ],
)
def test_bad_values_end_with_one_line_that_names_the_key(config, capsys, override, said):
    error = refused("train", config, override, capsys=capsys)
    assert all(part in error for part in said), error


def test_temperature_zero_of_a_trained_agent_is_refused_without_a_word_of_filters(config, capsys):
    error = refused("train", config, "team.left.sampling.temperature=0", capsys=capsys)
    assert "team.left.sampling.temperature: a trained agent must sample" in error
    assert "top_p" not in error


def test_an_adapter_of_frozen_weights_has_no_effect_and_is_refused(model_folder, tmp_path, capsys):
    made = relay_config(model_folder)
    made["team"]["last"]["trainable"] = False
    del made["policies"]["b"]["optimizer"]
    file = write(tmp_path / "c.yaml", made)
    error = refused("train", file, "policies.b.adapter.rank=4", capsys=capsys)
    assert "no effect" in error


def test_one_key_freezes_an_agent(config, tmp_path, capsys):
    made = load(config, ["team.last.trainable=false"])
    assert made.policies["b"].optimizer is None
    assert made.policies["a"].optimizer is not None
    recipe = load(find("math"), ["team.verifier.trainable=false"])
    assert recipe.team["verifier"].invalid_penalty == 0.0
    assert recipe.team["solver"].invalid_penalty == 0.1
    assert isinstance(build(validate(recipe)), Run)


def test_a_run_without_shared_policies_is_evaluated_from_its_folder(model_folder, tmp_path, capsys):
    config = write(tmp_path / "c.yaml", solo_config(model_folder, trainer={"steps": 1}))
    run = tmp_path / "run"
    status, _, error = rolecall("train", config, "--output", run, capsys=capsys)
    assert status == 0, error
    status, _, error = rolecall("eval", run, capsys=capsys)
    assert status == 0, error


def test_unknown_recipes_and_files_are_refused(capsys, tmp_path):
    assert "math" in refused("train", "maths", capsys=capsys)
    assert "nothing.yaml" in refused("train", tmp_path / "nothing.yaml", capsys=capsys)
    broken = tmp_path / "broken.yaml"
    broken.write_text("team: {solver: [\n")
    assert "broken.yaml:2" in refused("train", broken, capsys=capsys)
    broken.write_text("team: " + "[" * 3000 + "]" * 3000)
    assert "nested too deeply" in refused("train", broken, capsys=capsys)
    broken.write_text("- a\n- b\n")
    assert "mapping" in refused("train", broken, capsys=capsys)
    broken.write_bytes(b"\xff\xfe\x00\x01")
    assert "broken.yaml" in refused("train", broken, capsys=capsys)


def test_a_base_without_tokenizer_or_chat_template_is_refused(
    config, model_folder, tmp_path, capsys
):
    bare = tmp_path / "bare"
    shutil.copytree(model_folder, bare)
    for name in ("chat_template.jinja",):
        (bare / name).unlink()
    assert "chat template" in refused("train", config, f"policies.a.base={bare}", capsys=capsys)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    assert "tokenizer" in refused("train", config, f"policies.a.base={bare}", capsys=capsys)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty" in refused("train", config, f"policies.a.base={empty}", capsys=capsys)


def test_a_malformed_data_row_is_named_by_file_and_line(model_folder, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    incomplete = '{"question": "2+2?"}\n'  # most of the file
    rows.write_text('{"question": "1+1?", "answer": "#### 2"}\n' + 2 * incomplete)
    made = solo_config(model_folder)
    made["environment"] = {"name": "math", "train": str(rows)}
    file = write(tmp_path / "c.yaml", made)
    assert "rows.jsonl:2" in refused("train", file, capsys=capsys)


def test_a_run_folder_of_another_config_or_without_a_run_is_refused(config, tmp_path, capsys):
    run = tmp_path / "run"
    rolecall("train", config, "trainer.steps=1", "--output", run, capsys=capsys)
    error = refused("train", config, "trainer.seed=2", "--output", run, capsys=capsys)
    assert "trainer.seed" in error
    assert "nowhere" in refused("eval", tmp_path / "nowhere", capsys=capsys)
    assert "nowhere" in refused("show", tmp_path / "nowhere", capsys=capsys)
    assert "nowhere" in refused(
        "train", config, "--output", tmp_path / "nowhere", "--resume", capsys=capsys
    )
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    assert "not a run folder" in refused("show", other, capsys=capsys)
    assert "not empty" in refused("train", config, "--output", other, capsys=capsys)
    assert "step-9" in refused("eval", run, "--checkpoint", "step-9", capsys=capsys)


@pytest.mark.evidence  # tests/runtime/test_interrupts.py stops a run at several moments
@pytest.mark.parametrize(("told", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_told_to_end_saves_and_says_how_to_resume(config, tmp_path, told, status):
    folder = tmp_path / "run"
    command = [
        sys.executable, "-m", "rolecall", "train", str(config), "trainer.steps=1000",
        "trainer.save_every=1000", "--output", str(folder),
    ]  # fmt: skip
    source = Path(main.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{source.parent}"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore Ctrl-C, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    metrics = folder / "metrics.jsonl"
    while time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count('"kind": "step"') >= 2:
            break
        time.sleep(0.1)
    process.send_signal(told)
    out, error = process.communicate(timeout=60)
    assert process.returncode == status, error
    assert f"Continue with: rolecall train {folder}" in out
    assert "Traceback" not in error
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    last = max(record["step"] for record in steps)
    assert (folder / "checkpoints/latest").read_text().strip() == f"step-{last}"


def test_a_failed_run_has_status_1_and_one_line(model_folder, tmp_path, capsys):
    made = solo_config(model_folder, environment={"fail_share": 1.0}, evaluation={"tasks": 0})
    file = write(tmp_path / "c.yaml", made)
    status, _, error = rolecall("train", file, "--output", tmp_path / "run", capsys=capsys)
    assert status == 1
    assert len(error.strip().splitlines()) == 1
    assert "the world went away" in error


@pytest.mark.parametrize("verb", leave_to_evidence(["train", "eval"], keep=["train"]))
@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("{name: mcp, command: [/no/such/program]}", "MCP server does not answer"),
        ("{name: mcp, command: [SERVER], only: [sub]}", "the server has no tool 'sub'"),
        ("{name: python, url: 'http://127.0.0.1:9'}", "127.0.0.1:9"),
        ("tests/toy.py:Unopened", "its door is shut"),
        ("{name: search, url: 'http://127.0.0.1:9'}", "no search at http://127.0.0.1:9/retrieve"),
        ("{name: search, url: 'http://127.0.0.1:9'}", "rolecall serve search"),
        ("{name: search, index: no-such-folder}", "set `corpus`"),
        ("world", "LettersWorld offers no tools"),
    ],
)
def test_a_tool_that_cannot_start_is_told_once_and_before_the_first_step(
    model_folder, tmp_path, capsys, monkeypatch, verb, named, said
):
    if "mcp" in named:
        pytest.importorskip("mcp", reason="the extra rolecall[mcp] is not installed")
    monkeypatch.setattr("rolecall.sandbox.fusion.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("rolecall.retrieval.client.MOST_TRIAL_S", 0.5)
    server = Path(__file__).parents[1] / "tools/mcp_server.py"
    named = named.replace("SERVER", f"{sys.executable}, {server}")
    named = named.replace("tests/toy.py", str(Path(__file__).parents[1] / "toy.py"))
    file = write(tmp_path / "c.yaml", solo_config(model_folder))
    tools = f"team.solver.tools={{format: tags, use: [calculator, {named}]}}"
    output = ["--output", tmp_path / "run"] if verb == "train" else []
    error = refused(verb, file, tools, *output, capsys=capsys)
    assert "team.solver.tools.use[1]" in error
    assert said in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("{name: search, url: 'http://127.0.0.1:9'}", "no search at http://127.0.0.1:9/retrieve"),
        ("{name: data_science, url: 'http://127.0.0.1:9'}", "rolecall serve sandbox"),
        (
            "{name: mixed, of: {one: {name: math}, two: {name: search, url: 'http://127.0.0.1:9'}}}",
            "environment.of.two: no search at",
        ),
    ],
)
def test_a_server_of_the_environment_that_is_down_is_told_before_the_first_step(
    model_folder, tmp_path, capsys, monkeypatch, environment, said
):
    monkeypatch.setattr("rolecall.sandbox.fusion.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("rolecall.retrieval.client.MOST_TRIAL_S", 0.5)
    file = write(tmp_path / "c.yaml", solo_config(model_folder, environment={}))
    changes = [f"environment={environment}", "--output", tmp_path / "run"]
    error = refused("train", file, *changes, capsys=capsys)
    assert said in error
    assert not (tmp_path / "run").exists()


def test_an_evaluation_stays_in_the_run_folder_and_can_be_read(config, tmp_path, capsys):
    run = tmp_path / "run"
    rolecall("train", config, "trainer.steps=1", "--output", run, capsys=capsys)
    again = ["evaluation.samples=3", "evaluation.tasks=1", "--json"]
    status, out, error = rolecall("eval", run, *again, capsys=capsys)
    assert status == 0, error
    found = json.loads(out)
    kept = json.loads((run / "evaluated/evaluation-000001.json").read_text())
    assert kept == {"step": 1, "overrides": ["evaluation.samples=3", "evaluation.tasks=1"], **found}
    options = ["--evaluation", "--task", "test-0", "--json"]
    status, out, _ = rolecall("show", run, *options, capsys=capsys)
    assert (status, len(json.loads(out))) == (0, 3)
    status, out, _ = rolecall("show", run, "--evaluation", "--step", 0, capsys=capsys)
    assert status == 0
    assert "Best of evaluation-000000" in out
    error = refused("show", run, "--evaluation", "--step", 7, capsys=capsys)
    assert "no evaluation after step 7" in error
