"""The gradient of a token that `rolecall spikes --measure` prints."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rolecall.learners.packing import pack
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan
from rolecall.storage import checkpoint
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from tests.explain.test_blame import run as run  # a fixture
from tests.toy import command

pytestmark = pytest.mark.slow


def test_a_token_is_measured_by_the_gradient_of_its_log_prob(run, capsys):
    capsys.readouterr()
    assert command("spikes", run, "--step", 2, "-n", 3, "--measure", "--json", "-") == 0
    spikes = json.loads(capsys.readouterr().out)
    assert "checkpoint step-1, which sampled it" in spikes["note"]
    folder = RunFolder.existing(run)
    built = build(load_plan(folder.config, []))
    with checkpoint.held(folder, "step-1") as saved:
        built.restore(saved)
    turns = {t.id: t for e in read_parquet(folder.episode_file(2)) for t in e.turns}
    for token in spikes["tokens"][:3]:
        turn = turns[token["turn"]]
        learner = built.learners[turn.policy]
        [batch] = pack([turn], budget=10_000, share=False)
        place = np.flatnonzero(batch.mask)[token["token"]]
        learner.forward(batch).logprobs[place].backward()
        squares = sum(
            float((p.grad.double() ** 2).sum()) for p in learner.parameters if p.grad is not None
        )
        for parameter in learner.parameters:
            parameter.grad = None
        size = abs(token["ratio"] * float(turn.advantages[token["token"]])) * turn.weight
        assert token["measured"] == pytest.approx(size * squares**0.5, rel=1e-4)
        assert token["measured"] > 0
    assert all(token["measured"] is None for token in spikes["tokens"][3:])
    assert torch.is_grad_enabled()


def test_a_step_without_episodes_is_said_in_one_line(run, capsys):
    assert command("spikes", run, "--step", 99) == 2
    assert "no episodes of step 99" in capsys.readouterr().err
