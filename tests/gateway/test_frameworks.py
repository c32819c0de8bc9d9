"""The examples of `examples/frameworks` train, each a program of a framework as it is published."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rolecall.core.types import Episode, Turn
from rolecall.storage.episode_io import read_parquet
from tests.support.small_model import needs_small_model
from tests.toy import command

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/frameworks"
PYTHON = ROOT / "build/frameworks/bin/python"  # with the frameworks
pytestmark = [pytest.mark.slow, pytest.mark.alone]
needs_frameworks = pytest.mark.skipif(
    not PYTHON.is_file(), reason="make build/frameworks installs them"
)

CAMEL = ROOT / "build/camel/bin/python"
needs_camel = pytest.mark.skipif(not CAMEL.is_file(), reason="make build/camel installs it")


def train(config: str, example: str, folder: Path, *changes: str) -> list[Episode]:
    """Train two updates, and return all episodes."""
    arguments = [f"workflow.function={EXAMPLES}/{example}.py:run", "trainer.steps=2", *changes]
    assert command("train", EXAMPLES / config, *arguments, "--output", folder / "run") == 0
    episodes = [
        episode
        for step in (1, 2)
        for episode in read_parquet(folder / f"run/episodes/step-{step:06d}.parquet")
    ]
    assert [episode.error for episode in episodes if episode.error] == []
    return episodes


def continues(later: Turn, earlier: Turn) -> bool:
    said = [*earlier.prompt, *earlier.tokens]
    return later.prompt[: len(said)].tolist() == said


@pytest.mark.parametrize(
    "example",
    [
        "openai_sdk",
        "anthropic_sdk",
        pytest.param("openai_agents_responses", marks=needs_frameworks),
        pytest.param("openai_agents_chat", marks=needs_frameworks),
        pytest.param("langgraph_team", marks=needs_frameworks),
        pytest.param("autogen_team", marks=needs_frameworks),
        pytest.param("camel_team", marks=needs_camel),
    ],
)
def test_a_team_of_a_framework_is_trained_on_exact_tokens(example, tmp_path):
    """Each says the same to the same agents, so all get the same answers."""
    python = CAMEL if example == "camel_team" else PYTHON
    own = [] if example.endswith("_sdk") else [f"workflow.python={python}"]
    less = ["rollout.groups=4", "rollout.group_size=4", "evaluation.tasks=0"]
    episodes = train("team.yaml", example, tmp_path, *less, *own)
    assert len(episodes) == 32
    shapes = Counter(tuple(turn.agent for turn in episode.turns) for episode in episodes)
    assert set(shapes) <= {("solver", "verifier"), ("solver", "verifier", "solver")}
    assert len(shapes) == 2
    for episode in episodes:
        first, _, *last = episode.turns
        for turn in last:
            assert turn.parents == (first.id,)
            assert continues(turn, first)


@needs_small_model
@pytest.mark.parametrize(
    "example",
    [
        "google_sdk",
        pytest.param("smolagents_tools", marks=needs_frameworks),
        pytest.param("smolagents_code", marks=needs_frameworks),
        pytest.param("dspy_react", marks=needs_frameworks),
    ],
)
def test_an_agent_with_prompts_of_its_framework_is_trained(example, tmp_path):
    """No small model follows those prompts. A reward that tells attempts apart trains it anyway."""
    own = [] if example.endswith("_sdk") else [f"workflow.python={PYTHON}"]
    reward = f"rewards={{{ROOT}/tests/toy.py:alternate: 1.0}}"
    episodes = train("tools.yaml", example, tmp_path, reward, *own)
    turns = [turn for episode in episodes for turn in episode.turns]
    assert all(turn.tokens is not None and len(turn.tokens) for turn in turns)
    spliced = 0
    for episode in episodes:
        by_id = {turn.id: turn for turn in episode.turns}
        for turn in episode.turns:
            for parent in turn.parents:
                earlier = by_id[parent]
                said = earlier.tokens[:-1].tolist()
                spliced += contains(turn.prompt.tolist(), said)
                assert contains(turn.prompt.tolist(), said)
    if example != "dspy_react":  # which never sends an assistant's message
        assert spliced > 0


def contains(whole: list[int], piece: list[int]) -> bool:
    return any(whole[n : n + len(piece)] == piece for n in range(len(whole) - len(piece) + 1))
