"""Long prompts are cut where the config says, trained, and counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.core.prompt_truncation import PromptTruncation
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from tests import toy
from tests.toy import command, write

LIMIT = 40


@pytest.mark.parametrize(
    ("side", "kept"),
    [
        ("left", [6, 7, 8, 9, 10]),
        ("right", [0, 1, 2, 3, 4]),
        ("middle", [0, 1, 8, 9, 10]),
    ],
)
def test_a_prompt_of_eleven_tokens_keeps_five(side, kept):
    truncation = PromptTruncation(max_tokens=5, side=side)
    assert truncation.cut(np.arange(11, dtype=np.int32)).tolist() == kept
    assert truncation.cut(np.arange(5, dtype=np.int32)).tolist() == [0, 1, 2, 3, 4]


def make_config(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    truncation = {"max_tokens": LIMIT, "side": "left"}
    return {
        "team": {"solver": {"policy": "small", "truncation": truncation}},
        "policies": {"small": {"base": "tiny:math"}},
        "workflow": "single",
        "environment": {"name": "math", "train": str(path), "test": str(path)},
        "rewards": {f"{toy.__file__}:alternate": 1.0},
        "algorithm": "grpo",
        "rollout": {"groups": 2, "group_size": 2},
        "trainer": {"steps": 1},
        "evaluation": {"tasks": 0},
    }


def test_prompts_that_no_context_has_room_for_are_cut_and_trained(tmp_path):
    rows = [{"question": "1 + " * 600 + "1?", "answer": "2"}, {"question": "1?", "answer": "1"}]
    path = write(tmp_path / "team.yaml", make_config(tmp_path, rows))
    assert command("train", path, f"output={tmp_path / 'run'}") == 0
    [metrics] = RunFolder(tmp_path / "run").read_metrics()
    assert metrics["rollout/prompts_cut"] == 2
    assert metrics["rollout/failures"] == 0


def test_a_policy_behind_an_api_has_no_prompt_to_cut(tmp_path):
    config = make_config(tmp_path, [{"question": "1?", "answer": "1"}])
    config["policies"]["api"] = {"engine": {"name": "openai", "model": "m", "url": "http://x/v1"}}
    config["team"]["helper"] = {**config["team"]["solver"], "policy": "api", "trainable": False}
    with pytest.raises(ConfigError, match=r"team\.helper\.truncation: policy 'api' is behind an"):
        validate(load(write(tmp_path / "team.yaml", config)))
