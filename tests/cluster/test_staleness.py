"""Steps that overlap over Ray: no turn is trained on that is too old, also when actors are lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rolecall.runs.api import train
from tests.cluster.killing import ENGINE, RANK, Killer, all_gone, records
from tests.cluster.test_ray_runs import ON_RAY
from tests.toy import relay_config

pytestmark = [pytest.mark.slow, pytest.mark.alone]
STEPS = 7


def lags_of(run: Path, step: int) -> set[int]:
    """By how many updates the weights had moved on that a token was sampled with."""
    rows = pq.read_table(run / f"episodes/step-{step:06d}.parquet").to_pylist()
    assert all(row["advantage"] is not None for row in rows)
    return {step - 1 - version for row in rows for version in row["versions"]}


@pytest.mark.parametrize(("lag", "kind"), [(1, ENGINE), (4, RANK)])
def test_no_turn_is_older_than_the_bound_when_an_actor_is_killed(lag, kind, model_folder, tmp_path):
    config = relay_config(
        model_folder,
        trainer={"steps": STEPS, "save_every": 2, "max_staleness": lag},
        evaluation={"tasks": 0},
    )
    run = tmp_path / "run"
    with Killer(run, kind, {3}, signal.SIGKILL) as killer:
        train(config | ON_RAY, output=run)
    assert len(killer.killed) == 1
    assert records(run) == list(range(1, STEPS + 1))
    found = [lags_of(run, step) for step in range(1, STEPS + 1)]
    assert all(min(lags) >= 0 and max(lags) <= lag for lags in found)
    assert max(max(lags) for lags in found) == lag, "steps overlap"
    assert all_gone(within_s=20.0) == []
