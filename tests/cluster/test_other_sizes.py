"""A run goes on with other numbers of ranks and engines, and on another kind of cluster."""

from __future__ import annotations

import pytest

from rolecall.core.errors import ConfigError
from rolecall.runs.api import train
from tests.cluster.killing import all_gone, records
from tests.cluster.test_random_kills import assert_whole, tokens_of, weights_of
from tests.cluster.test_ray_runs import ON_RAY
from tests.toy import alike, relay_config

pytestmark = [pytest.mark.slow, pytest.mark.alone]
CHAPTERS = [  # each is one step more
    ["learner.ranks=3", "engine.replicas=1"],
    ["learner.ranks=1", "engine.replicas=3"],
    ["cluster={name: local}", "engine.replicas=1", "learner.ranks=2"],
]


def config_of(model, *, steps: int) -> dict:
    optimizer = {"lr": 1e-3, "eps": 1e-4}  # so that steps depend smoothly on gradients
    policies = {name: {"base": str(model), "optimizer": optimizer} for name in ("a", "b")}
    trainer = {"steps": steps, "save_every": 1}
    return relay_config(model, policies=policies, trainer=trainer, evaluation={"tasks": 0})


def test_a_run_goes_on_with_other_numbers_of_ranks_and_engines(model_folder, tmp_path):
    """And comes to what one process comes to."""
    run, here = tmp_path / "run", tmp_path / "here"
    sharded = {"learner": {"name": "fsdp", "ranks": 2, "device": "cpu"}}
    train(config_of(model_folder, steps=1) | ON_RAY | sharded, output=run)
    for number, changes in enumerate(CHAPTERS):
        train(run, [f"trainer.steps={number + 2}", *changes], allow_changes=True)
    steps = len(CHAPTERS) + 1
    assert records(run) == list(range(1, steps + 1))
    assert_whole(run, steps)
    train(config_of(model_folder, steps=steps), output=here)
    for step in range(1, steps + 1):
        assert tokens_of(run, step) == tokens_of(here, step), step
    assert alike(weights_of(run, steps), weights_of(here, steps))
    with pytest.raises(ConfigError, match=r"allow-changes"):
        train(run, ["trainer.steps=9", "learner.ranks=3"])
    assert all_gone(within_s=20.0) == []
