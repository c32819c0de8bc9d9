"""A tool agent proposes and a planner decides; cooks choose one after another."""

from __future__ import annotations

import pytest

from rolecall.environments.grid_worlds.plan_path import PlanPath
from rolecall.environments.grid_worlds.puzzle import PuzzleWorld
from rolecall.environments.kitchen.environment import KitchenWorld
from rolecall.environments.kitchen.rules import NOTHING, ONION, Kitchen
from rolecall.workflows.in_turn import in_turn
from rolecall.workflows.tool_planner import tool_planner
from tests.workflows.teams import play_team, turns_of

GRID = ["P#.", ".#G", "..."]


def moves(*listed: str) -> list[str]:
    return [f"<answer>{text}</answer>" for text in listed]


def fresh_grid() -> PuzzleWorld:
    return PuzzleWorld(PlanPath(GRID))


def test_only_the_planner_acts_and_both_see_the_new_board(model_folder):
    says = {"tool": moves("D,D,R", "R"), "planner": moves("D,D", "R,R,U")}
    done = play_team(model_folder, tool_planner, says, world=fresh_grid)
    assert done.error is None
    assert done.team_score == 1.0
    first, second = turns_of(done, "planner")
    assert "[tool]\n<answer>D,D,R</answer>" in first.messages[-1].content
    assert "P#.\n.#G\n..." in first.messages[-1].content
    assert ".#.\n.#G\nP.." in second.messages[-1].content
    assert "P#." not in second.messages[-1].content, "no earlier board"
    assert ".#.\n.#G\nP.." in turns_of(done, "tool")[1].messages[-1].content
    assert [turn.world_rewards for turn in (first, second)] == [{"step": 0.4}, {"step": 0.6}]


def test_a_team_that_runs_out_of_rounds_has_not_solved_the_grid(model_folder):
    says = {"tool": moves("D", "D"), "planner": moves("D", "D")}
    done = play_team(model_folder, tool_planner, says, world=fresh_grid, options={"rounds": 2})
    assert (done.error, done.team_score, done.metrics["progress"]) == (None, 0.0, 0.4)


def test_candidates_of_the_tool_are_scored_in_forks_and_move_nothing(model_folder):
    says = {"tool": moves("U", "D,D,R"), "planner": moves("D", "D,D,R,R,U")}
    options = {"rounds": 1, "candidates": 2}
    done = play_team(model_folder, tool_planner, says, world=fresh_grid, options=options)
    assert done.error is None
    assert done.team_score == 1.0
    proposals, actions = turns_of(done, "tool"), turns_of(done, "planner")
    assert [turn.chosen for turn in proposals] == [turn.chosen for turn in actions] == [False, True]
    assert [turn.world_rewards["team"] for turn in proposals] == [0.0, 0.6]
    assert [turn.world_rewards["own"] for turn in proposals] == [-0.1, 0.6]
    assert [turn.world_rewards["team"] for turn in actions] == pytest.approx([0.2, 1.0]), (
        "first board"
    )
    assert "[tool]\n<answer>D,D,R</answer>" in actions[0].messages[-1].content


def test_cooks_choose_in_turn_and_hear_who_has_chosen(model_folder):
    def world() -> KitchenWorld:
        return KitchenWorld(
            Kitchen(onions=1, cooking=0, hands=(ONION, NOTHING), steps=4, size=2, time=0)
        )

    says = {
        "ann": ["[pot]", "[wait]", "[wait]", "[wait]"],
        "ben": ["[plate]", "[soup]", "[serve]", "[wait]"],
    }
    done = play_team(
        model_folder, in_turn, says, world=world, roles={"ann": "player", "ben": "player"}
    )
    assert (done.error, done.team_score) == (None, 1.0)
    ann, ben = turns_of(done, "ann"), turns_of(done, "ben")
    assert len(ann) == len(ben) == 4
    assert "[ann]\n[pot]" in ben[0].messages[-1].content
    assert "[ben]" not in ann[1].messages[-1].content, "the next step begins with the kitchen alone"
    assert "soup is ready" in ann[1].messages[-1].content
