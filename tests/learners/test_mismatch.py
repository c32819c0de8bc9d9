"""Sampler and learner disagree: a warning beyond rounding, and a stop where nothing is right."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rolecall.learners.mismatch import Alarm, MismatchError
from tests.algorithms.test_every_algorithm import Display, case, trainer_of


def found(mean: float, largest: float, outside: float) -> dict[str, float]:
    return {"mismatch_mean": mean, "mismatch_max": largest, "mismatch_outside": outside}


@pytest.mark.parametrize(
    ("numbers", "exact", "other"),
    [
        (found(1e-6, 5e-5, 0.0), "", ""),
        (found(1e-3, 0.3, 0.005), "max=0.3 limit=0.0001", ""),
        (found(0.03, 0.5, 0.005), "max=0.5 limit=0.0001", "mean=0.03 limit=0.02"),
        (found(0.01, 9.0, 0.02), "max=9 limit=0.0001", "outside=0.02 limit=0.01"),
        (found(float("nan"), float("nan"), 0.0), "max=nan limit=0.0001", "mean=nan limit=0.02"),
        ({}, "", ""),
    ],
)
def test_limits_are_those_of_rounding(numbers, exact, other):
    assert Alarm(exact=True).warning(numbers) == exact
    assert Alarm(exact=False).warning(numbers) == other


def test_a_hopeless_first_step_stops(model_folder, tmp_path):
    """A sampler whose log-probs are those of another temperature."""
    Alarm(exact=False).check("a", found(0.19, 9.0, 0.2), first=True)
    with pytest.raises(MismatchError, match=r"of 'a' are 0\.3 nats from the sampler's"):
        Alarm(exact=True).check("a", found(0.3, 9.0, 0.2), first=True)
    Alarm(exact=False).check("a", found(0.3, 9.0, 0.2), first=False)
    Alarm(exact=True).check("a", found(float("nan"), 9.0, 0.2), first=False)
    with pytest.raises(MismatchError, match=r"in a later step .* has kept earlier weights"):
        Alarm(exact=True).check("a", found(0.3, 9.0, 0.2), first=False)
    trainer = trainer_of(case(model_folder, "grpo"), tmp_path / "run", Display())
    for learner in trainer.run.learners.values():
        forward = learner.forward

        def other(batch, forward=forward, **options):
            outputs = forward(batch, **options)
            outputs.logprobs = outputs.logprobs + 0.5
            return outputs

        learner.forward = other
    with pytest.raises(MismatchError, match="do not compute the same model"):
        asyncio.run(trainer.train())
    assert not (tmp_path / "run/checkpoints/latest").exists(), "nothing of it is kept"


def test_a_run_in_bfloat16_trains_without_an_alarm(model_folder, tmp_path, caplog):
    config = case(model_folder, "grpo", learner={"dtype": "bfloat16"}, trainer={"steps": 2})
    with caplog.at_level(logging.WARNING, logger="rolecall"):
        display = Display()
        asyncio.run(trainer_of(config, tmp_path / "run", display).train())
    shown = {name: value for name, value in display.last.items() if "mismatch" in name}
    assert shown, "it was measured"
    assert max(value for name, value in shown.items() if name.endswith("mismatch_mean")) < 0.2
