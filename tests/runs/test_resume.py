"""A run that was killed goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests import killed_run
from tests.support.evidence import leave_to_evidence
from tests.toy import crew_config, relay_config, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
POINTS = [
    ("between episodes", 17),
    ("in the middle of a journal line", 20),
    ("before the optimizer steps", 2),
    ("before the optimizer steps", 4),
    ("after an update", 2),
    ("in the middle of a checkpoint", 4),
    ("before a checkpoint is renamed", 2),
    ("before the pointer moves", 2),
]
LINE, CHECKPOINT = POINTS[1], POINTS[5]


def run(config: Path, folder: Path, point: str, count: int = 0) -> int:
    """Status of a process forked from one that has imported everything: seconds less a run."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rolecall.setup.build"])
    process = context.Process(target=killed_run.run, args=(config, folder, point, count))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -9), f"status {process.exitcode}"
    return process.exitcode


def run_afresh(config: Path, folder: Path) -> None:
    """To its end, by an interpreter of its own, whose sets of text have another order."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    command = [sys.executable, str(ROOT / "tests/killed_run.py"), config, folder, "never", 0]
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {
        f"{policy}.{name}": value
        for policy in ("a", "b")
        for name, value in load_file(
            folder / f"checkpoints/step-{step}/{policy}/model.safetensors"
        ).items()
    }


def metrics(folder: Path) -> list[dict]:
    """Everything but clock times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "pace/"))}
        for line in lines
    ]


@pytest.fixture(scope="module")
def uninterrupted(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    config = write(folder / "c.yaml", relay_config(model_folder))
    assert run(config, folder / "straight", "never") == 0
    return config, folder / "straight"


@pytest.mark.parametrize("place", leave_to_evidence(POINTS, keep=[CHECKPOINT]))
def test_resumed_equals_uninterrupted(uninterrupted, tmp_path, place):
    """Contract 4, with a real SIGKILL: bit-equal weights, metrics and episodes."""
    config, straight = uninterrupted
    folder = tmp_path / "killed"
    assert run(config, folder, *place) == -9
    assert not (folder / "finished").exists()
    assert run(config, folder, "never") == 0
    assert_equal_bits(folder, straight)
    assert list((folder / "journal").iterdir()) == []


@pytest.mark.evidence
def test_a_step_with_replays_whose_journal_is_whole_ends_with_the_same_bits(model_folder, tmp_path):
    """Killed as the updates of step 2 begin: its episodes are read, its replays played again."""
    changes = {
        "algorithm": {"name": "counterfactual", "fraction": 1.0},
        "rollout": {"groups": 2, "group_size": 2},
        "evaluation": {"tasks": 0},
    }
    config = write(tmp_path / "c.yaml", crew_config(model_folder, **changes))
    straight, folder = tmp_path / "straight", tmp_path / "killed"
    assert run(config, straight, "never") == 0
    parts = json.loads((straight / "checkpoints/step-3/state.json").read_text())["parts"]
    assert run(config, folder, "before the optimizer steps", len(parts) + 1) == -9
    whole = pq.read_table(straight / "episodes/step-000002.parquet").column("episode").unique()
    journal = (folder / "journal/step-000002.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in journal} == set(whole.to_pylist())
    assert not (folder / "checkpoints/step-2").exists()
    assert run(config, folder, "never") == 0
    assert_equal_bits(folder, straight)


def assert_equal_bits(folder: Path, straight: Path) -> None:
    """Weights, metrics and episodes of two runs of three steps."""
    expected, found = weights(straight, 3), weights(folder, 3)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert metrics(folder) == metrics(straight)
    for step in (1, 2, 3):
        for kind in ("episodes", "updates"):
            name = f"{kind}/step-{step:06d}.parquet"
            one, other = (without_times(pq.read_table(run / name)) for run in (folder, straight))
            assert one.equals(other), name


def without_times(table: pa.Table) -> pa.Table:
    """Return the columns, and the metrics of episodes, that do not say how long something took."""
    timed = {"began_s", "ended_s"}
    table = table.select([name for name in table.column_names if name not in timed])
    if "metrics" not in table.column_names:
        return table
    untimed = [
        [(name, value) for name, value in row or () if not name.startswith(("wall_s", "call_s/"))]
        for row in table["metrics"].to_pylist()
    ]
    column = pa.array(untimed, table.schema.field("metrics").type)
    return table.set_column(table.column_names.index("metrics"), "metrics", column)


@pytest.mark.evidence
def test_a_run_killed_twice_still_ends_the_same(uninterrupted, tmp_path):
    config, straight = uninterrupted
    folder = tmp_path / "killed"
    assert run(config, folder, "before the optimizer steps", 3) == -9
    assert run(config, folder, "before a checkpoint is renamed", 2) == -9
    run_afresh(config, folder)
    expected, found = weights(straight, 3), weights(folder, 3)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("place", leave_to_evidence(POINTS[:3], keep=[LINE]))
def test_without_determinism_no_finished_episode_is_lost_or_counted_twice(
    model_folder, tmp_path, place
):
    changes = {"deterministic": False, "save_every": 2}
    config = write(tmp_path / "c.yaml", relay_config(model_folder, trainer=changes))
    folder = tmp_path / "killed"
    assert run(config, folder, *place) == -9
    lines = [
        json.loads(line)
        for file in (folder / "journal").iterdir()
        for line in file.read_text().split("\n")[:-1]
    ]
    finished = {episode["id"]: episode["turns"][0]["tokens"] for episode in lines}
    assert finished
    assert run(config, folder, "never") == 0
    rows = [
        row
        for file in sorted((folder / "episodes").iterdir())
        for row in pq.read_table(file).to_pylist()
    ]
    first = {r["episode"]: r["token_ids"] for r in rows if r["path"] == [0, 0]}
    assert all(first[name] == tokens for name, tokens in finished.items())
    assert len(first) == 3 * 3 * 4  # steps, groups, attempts
    assert set(Counter(r["turn"] for r in rows).values()) == {1}
