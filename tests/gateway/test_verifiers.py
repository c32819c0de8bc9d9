"""An environment of verifiers is trained as it is, and its rubric is the reward."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rolecall.core.types import Episode
from rolecall.environments.external import ExternalEnvironment
from rolecall.grading.math.answers import extract
from rolecall.storage.episode_io import read_parquet
from tests.gateway.doors import compute, continues, play_scored
from tests.layouts import LAYOUTS, tokenizer_of
from tests.toy import command

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/verifiers"
PYTHON = ROOT / "build/verifiers/bin/python"
QWEN = tokenizer_of(LAYOUTS["qwen"])
TASKS = ("train", "test")
APPROVE, REJECT = "<verify>approve</verify>", "<verify>reject</verify>"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not PYTHON.is_file(), reason="make build/verifiers installs it"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The folder of the example, with the tasks of its taskset."""
    folder = tmp_path_factory.mktemp("verifiers") / "example"
    shutil.copytree(EXAMPLE, folder)
    subprocess.run([PYTHON, folder / "verifiers_env.py"], check=True)
    return folder


@pytest.fixture
def example(written, tmp_path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "example"))


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def play_one(folder: Path, *says: str, **options) -> Episode:
    """Play the first task, whose answer stands in the replies as ANSWER."""
    task = ExternalEnvironment(*tables(folder)).tasks("train")[0]
    replies = [text.replace("ANSWER", compute(task.prompt)) for text in says]
    options |= {"function": f"{folder}/verifiers_env.py:run", "python": str(PYTHON)}
    return play_scored(QWEN, replies, tables(folder), names=("solver", "verifier"), **options)


def tables(folder: Path) -> list[str]:
    return [str(folder / f"{split}.jsonl") for split in TASKS]


def test_the_seats_of_an_environment_are_trained_on_exact_tokens(example, tmp_path):
    arguments = [f"workflow.function={example}/verifiers_env.py:run", f"workflow.python={PYTHON}"]
    arguments += [f"environment.{split}={example}/{split}.jsonl" for split in TASKS]
    less = ["rollout.groups=2", "rollout.group_size=8", "trainer.steps=2", "evaluation.tasks=0"]
    output = tmp_path / "run"
    assert command("train", example / "team.yaml", *arguments, *less, "--output", output) == 0
    episodes = [
        episode
        for step in (1, 2)
        for episode in read_parquet(output / f"episodes/step-{step:06d}.parquet")
    ]
    assert len(episodes) == 32
    retried = 0
    for episode in episodes:
        assert episode.error is None
        first, check, *again = episode.turns
        agents = ["solver", "verifier"] + ["solver"] * len(again)
        assert [turn.agent for turn in episode.turns] == agents
        assert len(again) == (APPROVE not in check.text)
        retried += len(again)
        for turn in again:
            assert turn.parents == (first.id,)
            assert continues(turn, first)
        last = [first, *again][-1].text
        worth = float(extract(last, form="boxed") == compute(episode.task.prompt))
        assert episode.rewards == {"solver": worth, "verifier": worth}
    assert 0 < retried < 32
    assert {episode.rewards["solver"] for episode in episodes} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("first", "second", "reward"),
    [("\\boxed{0}", "\\boxed{ANSWER}", 1.0), ("\\boxed{ANSWER}", "\\boxed{0}", 0.0)],
)
def test_the_rubric_reads_the_last_reply_of_a_seat(example, first, second, reward):
    episode = play_one(example, first, REJECT, second)
    assert episode.error is None
    assert episode.rewards == {"solver": reward, "verifier": reward}
    assert episode.answer == second.replace("ANSWER", compute(episode.task.prompt))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("    @vf.reward\n", "", "no reward for the seat solver"),
        ('by_seat["verifier"].record_reward(', "print(", "no reward for the seat verifier"),
        ("return float(", "return float(1 / 0 or ", "scoring: ZeroDivisionError"),
        ("solution = (", "solution = (1 / 0 or ", "SumEnv.run(): ZeroDivisionError"),
    ],
)
def test_an_episode_without_a_reward_has_an_error_and_no_reward(example, old, new, error):
    change(example / "sums.py", old, new)
    episode = play_one(example, "\\boxed{ANSWER}", APPROVE)
    assert episode.error is not None
    assert error in episode.error
    assert episode.rewards == {}


def test_an_episode_that_uses_up_its_turns_is_cut(example):
    episode = play_one(example, "\\boxed{ANSWER}", REJECT, max_turns=2)
    assert episode.error is None
    assert episode.is_truncated
    assert episode.rewards == {"team": 0.0}


def test_a_harness_that_verifiers_starts_as_a_program_is_played(example):
    """A taskset without an environment of its own, and the harness that others use too."""
    (example / "env.toml").write_text(
        'env.id = "single-agent"\n'
        'env.taskset.id = "sums"\n'
        'env.agent.harness.id = "null"\n'
        'env.agent.runtime.type = "subprocess"\n'
    )
    episode = play_one(example, "\\boxed{ANSWER}")
    assert episode.error is None
    assert episode.rewards == {"solver": 1.0}
