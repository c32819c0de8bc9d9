"""An agent that must think in tags: which of its turns are valid, and what the others cost."""

from __future__ import annotations

import pytest

from rolecall.core.tags import has_one_thought
from rolecall.tools.functions import tool
from rolecall.tools.use import Stateless, ToolUse
from rolecall.workflows.single import single
from tests.workflows.teams import play_team, turns_of

BOX = "\\boxed{7}"
THINKER = {"require_think_tags": True, "invalid_penalty": 0.5}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("<think>Hm.</think> 7", True),
        ("7 <think>Hm.</think>", True),
        ("7", False),
        ("<think>Hm. 7", False),
        ("Hm.</think> 7", False),
        ("</think>7<think>", False),
        ("<think>a</think><think>b</think>", False),
        ("<think>a</think>b</think>", False),
        ("<think><think>a</think>", False),
    ],
)
def test_one_thought_is_one_pair_of_tags_in_their_order(text, is_one):
    assert has_one_thought(text) is is_one


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (f"<think>3+4</think>{BOX}", True),
        (BOX, False),
        ("<think>3+4</think>7", False),
        (f"<think>3</think><think>4</think>{BOX}", False),
    ],
)
def test_a_turn_is_valid_with_one_thought_and_what_its_parser_reads(model_folder, text, is_valid):
    episode = play_team(model_folder, single, {"solver": [text]}, agents={"solver": THINKER})
    [turn] = turns_of(episode, "solver")
    assert turn.valid is is_valid
    assert turn.rewards == ({} if is_valid else {"invalid": -0.5})


def test_tags_are_not_required_by_default(model_folder):
    [turn] = turns_of(play_team(model_folder, single, {"solver": [BOX]}), "solver")
    assert turn.valid


@tool
async def python(code: str) -> str:
    """Run code."""
    return "7"


def test_a_turn_that_calls_a_tool_needs_a_thought_too(model_folder):
    call = "```python\nprint(3 + 4)\n```"
    says = {"solver": [f"<think>a</think>{call}", call, f"<think>b</think>{BOX}"]}
    use = ToolUse((Stateless(python),), format="code")
    agents = {"solver": THINKER | {"tools": use}}
    turns = turns_of(play_team(model_folder, single, says, agents=agents), "solver")
    assert [turn.valid for turn in turns] == [True, False, True]
    assert [turn.rewards for turn in turns] == [{}, {"invalid": -0.5}, {}]
