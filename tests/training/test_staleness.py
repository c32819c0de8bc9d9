"""A policy may refuse turns that are too old for it, while others train theirs."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.runs.api import train
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from tests.toy import relay_config

OVERLAPPING = {"trainer": {"steps": 4, "max_staleness": 2}, "engine": {"separate_weights": True}}


@pytest.mark.parametrize("bound", [0, 1])
def test_older_turns_of_a_stricter_policy_are_not_trained(bound, model_folder, tmp_path):
    config = relay_config(model_folder, evaluation={"tasks": 0}, **OVERLAPPING)
    config["policies"]["b"]["max_staleness"] = bound
    train(config, output=tmp_path / "run")
    records = {record["step"]: record for record in RunFolder(tmp_path / "run").read_metrics()}
    assert sorted(records) == [1, 2, 3, 4]
    refused, updates_of_b = [], 0
    for step in records:
        rows = pq.read_table(tmp_path / f"run/episodes/step-{step:06d}.parquet").to_pylist()
        assert len(rows) == 3 * 4 * 3
        assert all(row["advantages"] is not None for row in rows if row["policy"] == "a")
        mine = [row for row in rows if row["policy"] == "b"]
        for row in mine:  # version 0 was before the first update
            lag = updates_of_b - min(row["versions"])
            assert (row["advantages"] is None) == (lag > bound)
        refused.append(sum(row["advantages"] is None for row in mine))
        assert records[step]["rollout/stale_turns"] == refused[-1]
        assert records[step]["rollout/stale_groups"] == 0
        updates_of_b += refused[-1] < len(mine)
    assert refused[0] == 0  # the first step is sampled by the weights that it updates
    assert sum(refused) > 0, "steps overlap"


@pytest.mark.parametrize(
    ("policy", "bound", "changes", "told"),
    [
        ("b", 2, {}, r"policies\.b\.max_staleness: no turn is trained that is staler than 2"),
        ("b", 0, {"trainer": {"max_staleness": 0}}, r"staler than 0 \(trainer\.max_staleness"),
        ("b", 1, {"team": {"last": {"trainable": False}}}, r"b is not trained; remove it"),
    ],
)
def test_a_bound_without_effect_is_refused(policy, bound, changes, told, model_folder):
    config = relay_config(model_folder, **OVERLAPPING)
    config["policies"][policy]["max_staleness"] = bound
    for section, values in changes.items():
        for key, value in values.items():
            if isinstance(value, dict):
                config[section][key] |= value
            else:
                config[section][key] = value
    with pytest.raises(ConfigError, match=told):
        validate(Config.model_validate(config))
