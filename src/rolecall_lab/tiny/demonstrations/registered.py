"""Lists which demonstrations belong to which workflow, by the workflow's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from rolecall.core.interfaces.critic import Judge
from rolecall.core.types import Task
from rolecall.environments.mixed import MixedEnvironment
from rolecall.rollout.episodes import RolloutContext
from rolecall_lab.tiny.demonstrations import (
    code,
    data_science,
    debate,
    grids,
    kitchen,
    kuhn,
    mathchat,
    maths,
    multitask,
    search,
    tool_use,
)
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene, drills

PYTHON = ("```python", "```")
OUTPUT = ("<output>", "</output>")
BOXED = "\\boxed{"


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Holds what a small model is taught, so that it can take part in a workflow."""

    say: Callable[[Scene], str]  # what a role says in a scene
    drills: Callable[[Sequence[Task], int], list[Drill]] | None = None  # the skill without the talk
    tags: tuple[str, ...] = ()  # texts that the model's tokenizer keeps whole
    judge: Callable[[Random], Judge] | None = None  # sends proposals back, as an algorithm will


# A workflow of your own is added here by its name before `rolecall_lab.tiny.build.build` is called.
BY_WORKFLOW: dict[str, Demonstrations] = {
    "coder_tester": Demonstrations(
        code.coder_tester, code.drills, tags=("<tests>", "</tests>", *PYTHON)
    ),
    "data_science": Demonstrations(
        data_science.data_science, tags=(*data_science.LINES, *PYTHON, *OUTPUT)
    ),
    "debate": Demonstrations(debate.debate, debate.drills, tags=("<winner>", "</winner>")),
    "in_turn": Demonstrations(
        kitchen.in_turn, kitchen.drills, tags=kitchen.TAGS, judge=kitchen.SendsSomeBack
    ),
    "mathchat": Demonstrations(mathchat.mathchat, drills, tags=(*PYTHON, BOXED, *OUTPUT)),
    "multi_turn": Demonstrations(search.search_alone, search.drills),
    "planner_workers": Demonstrations(tool_use.planner_workers, tags=tool_use.TAGS),
    "search_team": Demonstrations(
        search.search_team,
        search.drills,
        tags=(
            *("<verify>", "</verify>", "<search>", "</search>", "<answer>", "</answer>"),
            *("<information>", "</information>", "[verifier]", "[searcher]", *search.NAMES),
        ),
    ),
    "self_play": Demonstrations(kuhn.self_play),
    "single": Demonstrations(maths.solver_verifier, drills, tags=(BOXED,)),
    "solver_verifier": Demonstrations(
        maths.solver_verifier,
        drills,
        tags=("<verify>", "</verify>", BOXED, "[solver]", "[verifier]"),
    ),
    "tool_planner": Demonstrations(grids.tool_planner, grids.drills, tags=grids.TAGS),
}


WITH_TOOLS: dict[str, Demonstrations] = {  # where an agent of the team has tools
    "single": Demonstrations(tool_use.answer_prices, tags=tool_use.TAGS),
}


OF_SEVERAL: dict[str, Demonstrations] = {  # where it has, and tasks are of several environments
    "single": Demonstrations(
        multitask.answer, multitask.practise, tags=(*multitask.TAGS, *PYTHON, BOXED)
    ),
}


def team_demonstrations(context: RolloutContext) -> Demonstrations:
    """Return the demonstrations of the team's workflow.

    Raises ValueError with the names that there are.
    """
    name, tools = context.workflow.name, any(a.tools for a in context.agents.values())
    if tools and name in OF_SEVERAL and isinstance(context.environment, MixedEnvironment):
        return OF_SEVERAL[name]
    if tools and name in WITH_TOOLS:
        return WITH_TOOLS[name]
    if name not in BY_WORKFLOW:
        names = ", ".join(sorted(BY_WORKFLOW))
        raise ValueError(f"workflow {name!r} has no demonstrations to learn from; {names} have")
    return BY_WORKFLOW[name]
