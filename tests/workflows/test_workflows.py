"""Who is asked what, in which order, and what a workflow declares."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.agents.agent import Policy
from rolecall.core.interfaces.engine import Sampling
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runtime.call_tree import task_factory
from rolecall.workflows.base import workflow
from rolecall.workflows.single import single
from rolecall.workflows.solver_verifier import solver_verifier
from tests.toy import Letters, agent

BOX = "\\boxed{1}"
YES, NO = "<verify>approve</verify>", "<verify>Reject</verify>"


def talk(folder, words: dict[str, list[str]], *, roles: dict[str, str] | None = None, **options):
    """Play solver_verifier with fixed words; returns [(agent, text)] and the answer."""
    tokenizer = load_tokenizer(str(folder))
    left = {name: list(said) for name, said in words.items()}
    engine = ScriptedEngine(tokenizer, lambda request: left[request.policy].pop(0))
    agents = {}
    for name in words:
        role = (roles or {}).get(name, name)
        agents[name] = agent(
            name,
            Policy(name, tokenizer, engine),
            parser=solver_verifier.parsers[role],
            sampling=Sampling(max_tokens=200),
        )
        agents[name].role = role
    context = RolloutContext(agents, solver_verifier, options, Letters(), rewards={})

    async def run():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await play(context, Letters().tasks("train")[0])

    episode = asyncio.run(run())
    assert episode.error is None, episode.error
    return episode


def order(episode) -> list[str]:
    return [turn.agent for turn in episode.turns]


def test_approval_ends_the_episode(model_folder):
    episode = talk(model_folder, {"solver": [BOX], "verifier": [YES]})
    assert order(episode) == ["solver", "verifier"]
    assert episode.answer == BOX


def test_rejection_lets_the_solver_try_again_seeing_all_that_was_said(model_folder):
    episode = talk(model_folder, {"solver": ["first", BOX], "verifier": [NO]})
    assert order(episode) == ["solver", "verifier", "solver"]
    last = episode.turns[-1]
    assert [m.role for m in last.messages] == ["user", "assistant", "user"]
    assert last.messages[1].content == "first"
    assert last.messages[2].content == f"[verifier]\n{NO}"
    assert last.parents == (episode.turns[0].id, episode.turns[1].id)
    start = [*episode.turns[0].prompt, *episode.turns[0].tokens]
    assert last.prompt[: len(start)].tolist() == start


def test_the_last_round_has_no_verifier(model_folder):
    episode = talk(model_folder, {"solver": ["a", "b", "c"], "verifier": [NO, NO]}, rounds=3)
    assert order(episode) == ["solver", "verifier", "solver", "verifier", "solver"]
    assert order(talk(model_folder, {"solver": ["a"], "verifier": []}, rounds=1)) == ["solver"]


@pytest.mark.parametrize(("choice", "turns"), [("reject", 3), ("approve", 2), ("retry", 4)])
def test_what_an_unreadable_verdict_does_is_an_option(model_folder, choice, turns):
    words = {"solver": ["a", "b"], "verifier": ["looks fine", "still fine"]}
    episode = talk(model_folder, words, on_unparsable=choice)
    assert len(episode.turns) == turns
    assert [t.valid for t in episode.turns if t.agent == "verifier"] == [False] * (
        2 if choice == "retry" else 1
    )


def test_verdicts_are_read_in_any_case_and_both_tags_mean_the_last(model_folder):
    both = "<verify>approve</verify> hm <VERIFY>REJECT</VERIFY>"
    episode = talk(model_folder, {"solver": ["a", "b"], "verifier": [both]})
    assert len(episode.turns) == 3


def test_two_agents_may_play_the_verifier_and_both_must_approve(model_folder):
    roles = {"strict": "verifier", "kind": "verifier"}
    words = {"solver": ["a", "b"], "kind": [YES], "strict": [NO]}
    episode = talk(model_folder, words, roles=roles)
    assert order(episode) == ["solver", "kind", "strict", "solver"]
    words = {"solver": ["a"], "kind": [YES], "strict": [YES]}
    assert len(talk(model_folder, words, roles=roles).turns) == 3


def test_a_box_is_what_makes_a_solution_valid(model_folder):
    episode = talk(model_folder, {"solver": ["no box"], "verifier": [YES]})
    assert [t.valid for t in episode.turns] == [False, True]


def test_roles_are_read_from_the_source():
    assert single.roles == ("solver",)
    assert set(solver_verifier.roles) == {"solver", "verifier"}
    assert not solver_verifier.calls_others

    @workflow
    async def open_ended(team, task, world, name="x"):
        await team["first"]("a")
        return await team[name]("b")

    assert open_ended.roles == ("first",)
    assert open_ended.calls_others


def test_a_workflow_must_be_async():
    with pytest.raises(ValueError, match="async"):

        @workflow
        def plain(team, task, world):
            return None
