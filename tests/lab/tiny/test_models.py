"""The model inside the package is small and a fair start: able, with good and bad habits."""

from __future__ import annotations

import asyncio
import re

import pytest
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from rolecall.agents.agent import Agent, Policy
from rolecall.config.load import find, load
from rolecall.environments.math.generated import Generated
from rolecall.models import base_location
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.group_player import collect
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.workflows.base import workflow
from rolecall.workflows.single import single
from rolecall.workflows.solver_verifier import solver_verifier
from rolecall_lab.tiny.build import Size
from rolecall_lab.tiny.build import build as build_model
from rolecall_lab.tiny.tokenizer import fit

pytestmark = [pytest.mark.slow, pytest.mark.evidence]


@pytest.fixture(scope="module")
def played():
    """The untrained team of the recipe on held-out problems."""
    run = build(validate(load(find("math"))))

    async def play():
        asyncio.get_running_loop().set_task_factory(task_factory)
        tasks = list(run.context.environment.tasks("test"))[:210]
        return (await collect(run.context, tasks, step="test", group_size=2)).episodes

    return asyncio.run(play())


@pytest.mark.parametrize("name", base_location.list_embedded())
def test_a_model_takes_at_most_six_megabytes(name):
    folder = base_location.embedded_folder(name)
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 6_000_000
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == "qwen3"


@pytest.mark.parametrize(("name", "share"), [("math", 0.4), ("search", 0.6)])
def test_the_smaller_model_of_a_team_has_fewer_weights_and_a_tokenizer_of_its_own(name, share):
    large, small = (base_location.embedded_folder(n) for n in (name, f"{name}_small"))
    weights = [
        sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
        for folder in (large, small)
    ]
    assert weights[1] <= share * weights[0]
    one, other = (AutoTokenizer.from_pretrained(folder) for folder in (large, small))
    assert len(one) != len(other)
    text = "The answer of Ann is 12."
    assert one(text)["input_ids"] != other(text)["input_ids"]


def test_tags_are_single_ids_and_any_text_survives():
    tokenizer = AutoTokenizer.from_pretrained(base_location.embedded_folder("math"))
    for tag in ("<verify>", "</verify>", "\\boxed{", "<think>", "</think>"):
        assert len(tokenizer(tag, add_special_tokens=False)["input_ids"]) == 1
    for text in (
        "Compute 12+30.",
        "<verify>approve</verify>",
        "h\u00e9llo \u4f60\u597d \U0001f600",
    ):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert len(tokenizer("1234", add_special_tokens=False)["input_ids"]) == 4


def test_it_is_right_in_85_percent_when_it_works_in_steps(played):
    worked = [e for e in played if "=" in e.turns[0].text]
    right = [e for e in worked if re.findall(r"=(\d+)", e.turns[0].text)[-1:] == [e.task.answer]]
    assert len(worked) > 100
    assert len(right) / len(worked) >= 0.85


def test_the_untrained_team_answers_30_to_60_percent(played):
    assert 0.30 <= sum(e.scores["team"] for e in played) / len(played) <= 0.60


def test_it_has_good_and_bad_habits(played):
    first = [e.turns[0] for e in played]
    worked = sum("=" in t.text for t in first) / len(first)
    boxed = sum(t.valid for t in first) / len(first)
    verdicts = [t for e in played for t in e.turns if t.agent == "verifier"]
    reads = sum("=" in t.text for t in verdicts) / len(verdicts)
    for share in (worked, boxed, reads):
        assert 0.15 <= share <= 0.9


class Sums:
    def tasks(self, split):
        return Generated(split, level=1, kinds=("expression",), seed=0, size=3000)

    def open(self, task, *, seed):
        from rolecall.core.interfaces.environment import World

        world = World()

        async def score(episode):
            return {}

        world.score = score
        return world


def context(flow, **systems) -> RolloutContext:
    """A team whose members' words are the demonstrations'."""
    policy = Policy("nobody", fit([], size=300, tags=()), engine=None)
    agents = {role: Agent(role, policy, role, system) for role, system in systems.items()}
    return RolloutContext(agents, flow, {}, Sums(), rewards={})


def test_one_model_is_built_for_several_teams(tmp_path):
    size = Size(hidden=32, layers=1, heads=2, kv_heads=1, minutes=0.02, num_episodes=40)
    said = []
    alone, both = (
        context(single, solver="Alone."),
        context(solver_verifier, solver="S.", verifier="V."),
    )
    build_model(tmp_path / "m", [alone, both], size=size, log=said.append)
    [told] = [line for line in said if "demonstrations" in line]
    assert int(re.search(r"(\d+) turns", told)[1]) > 40 + 2 * 40


def test_a_model_is_built_from_a_workflows_demonstrations(tmp_path):
    size = Size(hidden=32, layers=1, heads=2, kv_heads=1, minutes=0.05, num_episodes=100)
    build_model(
        tmp_path / "m", [context(solver_verifier, solver="Solve.", verifier="Check.")], size=size
    )
    config = AutoConfig.from_pretrained(tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert config.vocab_size == len(tokenizer)
    assert tokenizer.chat_template


def test_a_width_that_heads_cannot_share_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"hidden must be a multiple of 8 \(it is 36\)"):
        build_model(tmp_path, [context(single, solver="Alone.")], size=Size(hidden=36))


def test_a_workflow_without_demonstrations_is_refused(tmp_path):
    @workflow
    async def silent(team, task, world):
        return await team.solver(task.prompt)

    with pytest.raises(ValueError, match="has no demonstrations"):
        build_model(tmp_path, [context(silent, solver="Solve.")])


def test_the_tokenizer_keeps_digits_apart():
    tokenizer = fit(["12 12 12 34"] * 50, size=400, tags=())
    assert len(tokenizer("12", add_special_tokens=False)["input_ids"]) == 2
