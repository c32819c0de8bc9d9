"""The file of a step's updates says what the learner saw of each token."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from rolecall.core.interfaces.learner import TurnTokens, Update
from rolecall.storage.episode_io import read_parquet, write_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.update_io import read_optimizer_steps, write_updates
from tests.storage.test_episodes import example
from tests.toy import relay_config, turn
from tests.training.test_trainer import train


def tokens(ids: list[str], lengths: list[int], logprobs: list[float], clipped: list[bool]):
    floats = np.array(logprobs, dtype=np.float32)
    return TurnTokens(ids, np.array(lengths, np.int32), floats, -floats, np.array(clipped))


def test_a_turn_has_the_log_probs_before_its_first_optimizer_step_and_all_that_clipped_it(tmp_path):
    first = Update(grad_norm=2.0, agent_grad_norms={"solver": 1.5}, lr=0.1)
    first.tokens = [tokens(["x", "y"], [2, 1], [-1.0, -2.0, -3.0], [False, True, False])]
    second = Update(grad_norm=9.0, agent_grad_norms={"solver": 9.0}, lr=0.1, kl=0.5)
    second.tokens = [tokens(["x"], [2], [-7.0, -7.0], [True, False])]
    third = Update(skipped="z")
    third.tokens = [tokens(["z"], [0], [], [])]
    merged = Update(grad_norm=5.5, steps=[first, second, third])
    turns = [turn(agent) for agent in ("solver", "verifier", "solver")]
    for one, name in zip(turns, "xyz", strict=True):
        one.id = name
    file = tmp_path / "updates" / "step-000001.parquet"
    write_updates(file, {"small": merged, "big": Update(grad_norm=1.0)}, turns)
    x, y, z = pq.read_table(file).to_pylist()
    assert (x["learner_logprobs"], x["entropies"]) == ([-1.0, -2.0], [1.0, 2.0])
    assert (x["clipped"], x["optimizer_steps"]) == ([True, True], [1, 2])
    assert (y["learner_logprobs"], y["clipped"], y["optimizer_steps"]) == ([-3.0], [False], [1])
    assert (y["agent"], y["policy"], y["episode"]) == ("verifier", "small", turns[1].episode)
    assert (z["learner_logprobs"], z["optimizer_steps"]) == ([], [3])
    steps = read_optimizer_steps(file)
    assert [(s["policy"], s["optimizer_step"], s["grad_norm"]) for s in steps] == [
        ("small", 1, 2.0), ("small", 2, 9.0), ("small", 3, 0.0), ("big", 1, 1.0),
    ]  # fmt: skip
    assert steps[0]["agent_grad_norms"] == {"solver": 1.5}
    assert [s["tokens"] for s in steps] == [3, 2, 0, 0]
    assert (steps[1]["kl"], steps[2]["skipped"]) == (0.5, "z")


def test_entropies_have_three_digits_and_log_probs_all(tmp_path):
    exact = np.random.default_rng(0).exponential(size=500).astype(np.float32)
    update = Update(tokens=[TurnTokens(["x"], np.array([500], np.int32), -exact, exact)])
    write_updates(tmp_path / "step-000001.parquet", {"a": update}, [])
    [row] = pq.read_table(tmp_path / "step-000001.parquet").to_pylist()
    assert row["learner_logprobs"] == (-exact).tolist()
    np.testing.assert_allclose(row["entropies"], exact, rtol=2**-8)
    assert (row["clipped"], row["agent"]) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_run_records_each_trained_turn_and_each_optimizer_step(model_folder, tmp_path, shared):
    config = relay_config(model_folder)
    config["algorithm"] = {"name": "grpo", "minibatches": 2, "clip_low": 0.0, "clip_high": 0.0}
    if shared:
        config["team"]["last"]["policy"] = "a"
        del config["policies"]["b"]
    trainer = train(config, tmp_path / "run")
    folder = trainer.folder
    [record] = [r for r in folder.read_metrics() if r["kind"] == "step" and r["step"] == 2]
    rows = {row["turn"]: row for row in pq.read_table(folder.update_file(2)).to_pylist()}
    episodes = read_parquet(folder.episode_file(2))
    turns = {t.id: t for e in episodes for t in e.turns}
    worth = {
        name for name, one in turns.items() if one.advantages is not None and any(one.advantages)
    }
    assert rows.keys() == worth
    clipped = 0
    for name, row in rows.items():
        assert (row["agent"], row["policy"]) == (turns[name].agent, turns[name].policy)
        np.testing.assert_allclose(row["learner_logprobs"], turns[name].logprobs, atol=2e-5)
        assert len(row["entropies"]) == len(row["clipped"]) == len(turns[name].tokens)
        assert min(row["entropies"]) >= 0
        clipped += sum(row["clipped"]) if 2 in row["optimizer_steps"] else 0
    assert clipped, "the second optimizer step sees ratios beside 1, of which none may count"
    steps = read_optimizer_steps(folder.update_file(2))
    for policy in {row["policy"] for row in rows.values()}:
        norms = [step["grad_norm"] for step in steps if step["policy"] == policy]
        assert np.mean(norms) == pytest.approx(record[f"policy/{policy}/grad_norm"])
        assert 1 <= len(norms) <= 2
    seen = {agent for step in steps for agent in step["agent_grad_norms"]}
    assert seen == {row["agent"] for row in rows.values()}


@pytest.mark.slow
def test_entropies_are_those_of_the_whole_distribution(model_folder, tmp_path):
    """A loss with a tiny bonus computes them with a gradient, in another way."""
    config = relay_config(model_folder)
    config["trainer"]["steps"] = 1
    plain = train(config, tmp_path / "plain").folder
    config["algorithm"] = {"name": config["algorithm"], "entropy": 1e-12}
    bonus = train(config, tmp_path / "bonus").folder
    found = [
        {row["turn"]: row["entropies"] for row in pq.read_table(one.update_file(1)).to_pylist()}
        for one in (plain, bonus)
    ]
    assert found[0].keys() <= found[1].keys()
    for name, entropies in found[0].items():
        np.testing.assert_allclose(entropies, found[1][name], rtol=2**-7, atol=1e-6)


def test_a_run_that_goes_back_forgets_its_later_updates(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        write_updates(folder.update_file(step), {"a": Update()}, [])
    folder.forget_after(1)
    assert [file.name for file in folder.updates.iterdir()] == ["step-000001.parquet"]


def test_a_file_of_episodes_from_before_the_new_columns_is_read(tmp_path):
    """Weight and temperature stood among the notes of a turn."""
    file = tmp_path / "step-000001.parquet"
    played = example()
    played.metrics["wall_s"] = 2.5
    played.turns[0].began_s = 0.5
    write_parquet(file, [played], step=1)
    [read] = read_parquet(file)
    assert (read.metrics, read.turns[0].began_s) == ({"wall_s": 2.5}, 0.5)
    table = pq.read_table(file)
    columns = ["metrics", "weight", "temperature", "began_s", "ended_s"]
    infos = [json.dumps({"weight": 0.5, "temperature": 0.7})] * len(table)
    old = table.drop_columns(columns)
    pq.write_table(old.set_column(old.column_names.index("info"), "info", [infos]), file)
    [read] = read_parquet(file)
    assert (read.turns[0].weight, read.turns[0].temperature) == (0.5, 0.7)
    assert (read.metrics, read.turns[0].began_s, read.turns[0].info) == ({}, None, {})
