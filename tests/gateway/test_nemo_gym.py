"""An environment of NeMo-Gym is trained as it is, and its resources server scores it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rolecall.core.types import Episode
from rolecall.grading.math.answers import extract
from rolecall.storage.episode_io import read_parquet
from tests.gateway.doors import compute, continues, play_scored
from tests.layouts import LAYOUTS, tokenizer_of
from tests.toy import command

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/nemo_gym/bin/python"
QWEN = tokenizer_of(LAYOUTS["qwen"])
pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not PYTHON.is_file(), reason="make build/nemo_gym installs it"),
]


@pytest.fixture
def example(tmp_path) -> Path:
    return Path(shutil.copytree(ROOT / "examples/nemo_gym", tmp_path / "example"))


def play_row(folder: Path, row: dict, *says: str) -> Episode:
    table = folder / "one.jsonl"
    table.write_text(json.dumps({"prompt": "?", "row": row}) + "\n")
    options = {"function": f"{folder}/nemo_env.py:run", "python": str(PYTHON)}
    return play_scored(QWEN, list(says), [str(table)] * 2, names=("solver",), **options)


def test_an_environment_is_trained_and_its_server_scores_it(example, tmp_path):
    subprocess.run([PYTHON, example / "nemo_env.py"], check=True)
    arguments = [f"workflow.function={example}/nemo_env.py:run", f"workflow.python={PYTHON}"]
    arguments += [f"environment.{split}={example}/{split}.jsonl" for split in ("train", "test")]
    less = ["rollout.groups=2", "rollout.group_size=8", "trainer.steps=2", "evaluation.tasks=0"]
    output = tmp_path / "run"
    assert command("train", example / "solver.yaml", *arguments, *less, "--output", output) == 0
    episodes = [
        episode
        for step in (1, 2)
        for episode in read_parquet(output / f"episodes/step-{step:06d}.parquet")
    ]
    assert len(episodes) == 32
    right = 0
    for episode in episodes:
        assert episode.error is None
        answer = extract(episode.turns[-1].text, form="boxed")
        is_right = answer == compute(episode.task.prompt)
        right += is_right
        assert (episode.rewards["team"] == 1.0) == is_right
    assert 0 < right < 32


def test_calls_of_tools_go_on_from_the_exact_tokens(example):
    file = example / "nemo_env.py"
    old = "reasoning_gym.app import ReasoningGymResourcesServer"
    new = "example_single_tool_call.app import SimpleWeatherResourcesServer"
    text = file.read_text().replace(old, new)
    file.write_text(text.replace("ReasoningGymResourcesServer", "SimpleWeatherResourcesServer"))
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "name": "get_weather", "parameters": parameters, "strict": False}
    request = {"input": [{"role": "user", "content": "How is Oslo?"}], "tools": [tool]}
    calls = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    episode = play_row(example, {"responses_create_params": request}, calls, "It is cold.")
    assert episode.error is None
    first, second = episode.turns
    assert second.parents == (first.id,)
    assert continues(second, first)
    assert "The weather in Oslo is cold." in QWEN.decode(second.prompt.tolist())
    assert episode.answer == "It is cold."
    assert episode.rewards == {"team": 1.0}


def test_a_row_that_cannot_be_scored_is_an_error_and_has_no_reward(example):
    request = {"input": [{"role": "user", "content": "2 + 2?"}]}
    row = {"responses_create_params": request, "question": "2 + 2?", "answer": "4"}
    episode = play_row(example, row, "\\boxed{4}")
    assert episode.error is not None
    assert episode.error.startswith("ProgramError: ClientResponseError: ")
    assert episode.rewards == {}
