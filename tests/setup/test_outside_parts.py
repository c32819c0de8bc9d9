"""An engine, a learner and an algorithm with its own critic come from files of a user's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.memory import estimate
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan, validate
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import changed, relay_config, write

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENGINE = f"{EXAMPLES}/plain_engine.py:PlainEngine"
BACKEND = f"{EXAMPLES}/plain_engine.py:PlainBackend"
LEARNER = f"{EXAMPLES}/plain_learner.py:PlainLearner"
ALGORITHM = f"{EXAMPLES}/running_mean.py:RunningMean"


def trained(config: dict, folder: Path):
    display = Display()
    trainer = trainer_of(config, folder, display)
    begun = {
        name: [p.detach().clone() for _, p in model.named_parameters()]
        for name, model in trainer.run.publisher.models.items()
    }
    asyncio.run(trainer.train())
    moved = {
        name: any(
            not bool((a == b).all())
            for a, (_, b) in zip(begun[name], model.named_parameters(), strict=True)
        )
        for name, model in trainer.run.publisher.models.items()
    }
    return trainer, display, moved


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"name": ENGINE, "options": {"most_at_once": 2}}},
        pytest.param(
            {"engine": {"name": BACKEND, "options": {"most_at_once": 2}}},
            marks=pytest.mark.evidence,
        ),
        {"learner": {"name": LEARNER, "options": {"momentum": 0.5}}, "algorithm": "rloo"},
        {"algorithm": ALGORITHM, "critics": {"scores": {}}},
    ],
    ids=["engine", "backend", "learner", "critic"],
)
def test_a_team_trains_with_a_part_of_a_users_own(changes, model_folder, tmp_path):
    config = changed(relay_config(model_folder), changes)
    trainer, display, moved = trained(config, tmp_path / "run")
    assert trainer.done == 3
    assert all(moved.values())
    assert display.last["step"] == 3


def test_the_engine_says_what_the_embedded_one_would_say(model_folder, tmp_path):
    """Its log-probs are the model's, and the learner's sampler check passes on them."""
    config = changed(relay_config(model_folder), {"engine": {"name": ENGINE}})
    run = build(validate(load(write(tmp_path / "own.yaml", config))))
    plain = build(validate(load(write(tmp_path / "plain.yaml", relay_config(model_folder)))))
    prompt = np.array([5, 9, 11], dtype=np.int32)
    request = Request("r", "a", prompt, Sampling(max_tokens=6, temperature=0.7), 3, ("t", 0, (0,)))

    async def both():
        [said] = await run.engine.generate(request)
        expected = await plain.engine.score("a", prompt, said.tokens, temperature=0.7)
        return said, expected

    said, expected = asyncio.run(both())
    assert said.logprobs == pytest.approx(expected, abs=1e-5)
    assert 1 <= len(said.tokens) <= 6


def test_a_backend_says_what_it_takes_and_what_it_cannot_do(model_folder, tmp_path):
    config = changed(relay_config(model_folder), {"engine": {"name": BACKEND}})
    plan = load_plan(write(tmp_path / "team.yaml", config))
    states = [
        need for need in estimate.estimate_memory(plan.config) if need.part == "states of one text"
    ]
    assert [need.owner for need in states] == [f"engine of {name}" for name in config["policies"]]
    assert all(need.num_bytes for need in states)
    agent = next(iter(config["team"]))
    config["team"][agent]["sampling"] = {"max_tokens": 4, "top_p": 0.9}
    with pytest.raises(
        ConfigError, match=rf"team\.{agent}\.sampling\.top_p: this engine keeps all"
    ):
        load_plan(write(tmp_path / "cut.yaml", config))


def test_an_own_critic_is_saved_with_the_run_and_its_baseline_moves(model_folder, tmp_path):
    config = changed(
        relay_config(model_folder), {"algorithm": ALGORITHM, "critics": {"scores": {}}}
    )
    trainer, display, _ = trained(config, tmp_path / "run")
    [group] = trainer.run.algorithm_groups
    expected = dict(group.critic.expected)
    assert any(expected.values())
    again = build(validate(load(tmp_path / "run.yaml")))
    again.restore(tmp_path / "run/checkpoints/step-3")
    assert again.algorithm_groups[0].critic.expected == expected
    assert {f"critic/expected/{agent}" for agent in expected} <= set(display.last)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"engine": {"name": "nowhere"}}, "engine.name: there is no engine 'nowhere'"),
        (
            {"engine": {"options": {"x": 1}}},
            "engine.options: unknown key where engine.name is local",
        ),
        (
            {"engine": {"name": ENGINE, "options": {"most": 1}}},
            "engine.options.most: unknown key; did you mean most_at_once?",
        ),
        (
            {"engine": {"name": BACKEND, "options": {"most": 1}}},
            "engine.options.most: unknown key; did you mean most_at_once?",
        ),
        (
            {"learner": {"name": LEARNER, "options": {"momentum": "much"}}},
            "learner.options.momentum: Input should be a valid number",
        ),
        (
            {"algorithm": ALGORITHM},
            "critics.scores: examples/running_mean.py:RunningMean needs this critic",
        ),
        (
            {"algorithm": ALGORITHM, "critics": {"scores": {"base": "tiny:math"}}},
            "critics.scores.base has no effect: this critic has no own model",
        ),
    ],
)
def test_what_does_not_fit_is_told(changes, told, model_folder, tmp_path):
    config = changed(relay_config(model_folder), changes)
    with pytest.raises(ConfigError) as raised:
        load_plan(write(tmp_path / "team.yaml", config))
    said = str(raised.value).replace(f"{EXAMPLES.parent}/", "")
    assert told in said


def test_a_learner_that_cannot_do_what_the_algorithm_needs_says_so(model_folder, tmp_path):
    changes = {"learner": {"name": LEARNER}, "algorithm": {"name": "grpo", "kl": 0.1}}
    config = changed(relay_config(model_folder), changes)
    for policy in config["policies"].values():
        policy["reference"] = "initial"
    plan = load_plan(write(tmp_path / "team.yaml", config))
    with pytest.raises(ConfigError, match=r"learner\.options: this learner has neither"):
        build(plan)
