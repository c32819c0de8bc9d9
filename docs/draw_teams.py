"""Writes docs/teams.md and its pictures: `python docs/draw_teams.py`.

Each team is played once by agents that say what SAYS has for them; what is drawn is who spoke in
that conversation, and whose words stood in the prompt. A test holds the pictures to the code.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import textwrap
from pathlib import Path
from random import Random
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from rolecall.agents.agent import Agent, Policy
from rolecall.config.registry import BUILT_IN, resolve
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Episode, Task, Turn
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.games.environment import GameWorld
from rolecall.environments.games.kuhn import Kuhn
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runtime.call_tree import task_factory
from rolecall.tools.functions import tool
from rolecall.tools.use import Stateless, ToolUse
from rolecall.workflows.graph import Sees

sys.path.insert(0, str(Path(__file__).parent))
from generate_options import paragraphs_and_meanings
from page_text import shown

HERE = Path(__file__).resolve().parent
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
BOX = "\\boxed{7}"
CODE = "```python\nprint(3 + 4)\n```"
REJECT, APPROVE = "<verify>reject</verify>", "<verify>approve</verify>"
# workflow -> agent (role, if another) -> what it says, call by call
SAYS: dict[str, dict[str, list[str]]] = {
    "ab_mcts": {"ann (solver)": [BOX] * 5, "ben (solver)": [BOX] * 5},
    "actor_critic": {"actor": ["a", "b"], "critic": ["No.", "APPROVE"]},
    "chain": {"generator": [BOX], "verifier": ["Hm."], "refiner": [BOX]},
    "coder_tester": {"coder": [CODE, CODE], "tester": ["a", "b"]},
    "data_science": {"engineer": ["e"], "modeler": ["m"], "analyst": ["a"]},
    "debate": {
        "left (debater)": ["l1", "l2"], "right (debater)": ["r1", "r2"],
        "judge": ["<winner>A</winner>"],
    },
    "experience": {"solver": [BOX] * 3, "memory": ["Check.", "Count."]},
    "graph": {"plan": ["p1"], "left": ["l1"], "right": ["r1"], "last": ["x"]},
    "in_turn": {"ann (player)": ["[onion]", "[pot]"], "ben (player)": ["[plate]", "[wait]"]},
    "leader_and_peers": {"ann (peer)": [BOX], "ben (peer)": [BOX], "leader": [BOX, BOX]},
    "malt": {"generator": [BOX] * 2, "verifier": ["Hm."] * 4, "refiner": [BOX] * 8},
    "majority_vote": {f"{name} (debater)": [BOX, BOX] for name in ("ann", "ben", "eva")},
    "mathchat": {"solver": ["plan"], "executor": [CODE, "It is 7."], "verifier": [BOX]},
    "mixture": {"ann (proposer)": [BOX], "ben (proposer)": [BOX], "aggregator": [BOX]},
    "multi_turn": {"actor": ["up", "up", "up"]},
    "pioneer_observer": {"ann (player)": [BOX], "ben (player)": [BOX]},
    "planner_workers": {
        "planner": ["<subtask>a</subtask><subtask>b</subtask>", BOX],
        "ann (worker)": ["ra"], "ben (worker)": ["rb"],
    },
    "reflection": {"student": ["\\boxed{8}"], "teacher": [REJECT, BOX]},
    "reflection_steps": {"student": ["up", "up"], "teacher": [REJECT, "down", APPROVE]},
    "search_team": {
        "verifier": ["<verify>no</verify>", "<verify>yes</verify>"],
        "searcher": ["<search>q</search>"], "answerer": ["<answer>7</answer>"],
    },
    "self_play": {"ann (player)": ["[check]", "[call]"], "ben (player)": ["[bet]"]},
    "single": {"solver": [BOX]},
    "solver_verifier": {"solver": [BOX, BOX], "verifier": [REJECT, APPROVE]},
    "tool_planner": {"tool": ["R,R", "D"], "planner": ["R", "D"]},
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "ab_mcts": {"nodes": 5},
    "coder_tester": {"max_turns": 2},
    "debate": {"rounds": 2},
    "experience": {"rounds": 3},
    "malt": {"candidates": 2},
    "graph": {
        "sees": {
            "plan": Sees(), "left": Sees(now=["plan"]), "right": Sees(now=["plan"]),
            "last": Sees(now=["left", "right"]),
        },
        "answer": "last",
    },
    "in_turn": {"max_steps": 2},
    "leader_and_peers": {"candidates": 2},
    "multi_turn": {"max_turns": 3},
    "reflection_steps": {"max_turns": 3},
    "solver_verifier": {"rounds": 2},
    "tool_planner": {"rounds": 2},
}  # fmt: skip


class AnyActionWorld(World):
    """A world that takes every action."""

    async def step(self, agent: str, action: str) -> Observation:
        return Observation("seen")

    async def fork(self) -> World:
        return AnyActionWorld()

    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": 0.0}


class Anything:
    def __init__(self, name: str) -> None:
        self.name = name

    def tasks(self, split: str) -> list[Task]:
        return [Task("t", "the task")]

    def open(self, task: Task, *, seed: int) -> World:
        return GameWorld(Kuhn(Random(0))) if self.name == "self_play" else AnyActionWorld()


@tool
async def python(code: str) -> str:
    """Runs code."""
    return "7"


HEAD = """# Teams

A workflow says who speaks when and who sees what. Name one in a config, and give each of its roles an
agent:

```yaml
team:
  solver: {policy: small}
  verifier: {policy: small}
workflow: {name: solver_verifier, rounds: 2}    # or path/to/mine.py:my_workflow
```

| `workflow:` | roles |
|---|---|
| `single`, `multi_turn` | `solver`; `actor`, who acts in the world |
| `solver_verifier`, `actor_critic`, `chain` | one proposes, others check and improve |
| `search_team` | `verifier` sends to `searcher` or `answerer` (Dr. MAS) |
| `mathchat` | `solver`, `executor` with Python, `verifier` (MAPPA, MARTI) |
| `malt` | every draft of a `generator` is criticised by a `verifier` and rewritten by a `refiner` several times; what came of a turn is its reward (MALT) |
| `ab_mcts` | `solver`s answer anew or improve an answer, by Thompson sampling in a tree of answers (AB-MCTS, MARS2) |
| `experience` | a `solver` tries again with the lessons that a `memory` writes after each attempt (MARTI) |
| `reflection`, `reflection_steps` | a `teacher` corrects what a `student` answers, or each of its actions in a world: [data for sft](stages.md#reflections-of-a-teacher) (STeP) |
| `majority_vote`, `mixture` | any number of `debater`s who vote; `proposer`s and an `aggregator` |
| `leader_and_peers` | `peer`s answer, a `leader` reads them and answers for all (MLPO) |
| `debate` | two `debater`s and a `judge` who knows neither |
| `planner_workers` | a `planner` hands subtasks to `worker`s (MATPO, M-GRPO) |
| `pioneer_observer` | two `player`s who swap roles (CORY) |
| `coder_tester` | a `coder` and a `tester` whose tests are run |
| `data_science` | `engineer`, `modeler`, `analyst` with files passing between them (MAPPA) |
| `self_play` | `player`s of a turn-based game; `policies.X.opponent_pool` gives one of them earlier weights |
| `tool_planner` | a `tool` agent proposes an answer, a `planner` decides what is played in the world (AT-GRPO) |
| `in_turn` | `player`s choose one after another, then the world takes a joint step (ReAd) |
| `graph` | your own, as a table of who reads whom |
| `remote` | the server of the environment says who acts: [Environments on servers](remote.md) |
| `external` | a program written elsewhere, which asks by HTTP: [Programs written elsewhere](external.md) |

Two agents can play one role under names of their own (`team.NAME.role`). A workflow of your own is one
async function: [Your own parts](extend.md#a-workflow).

This page is generated by `python docs/draw_teams.py`; do not edit it. In the drawings a circle is a call
of an agent. An arrow from one circle to another means that the first one's words stand in the second
one's prompt. Calls above one another do not read each other. Every agent is told the task, except
workers, who are told their subtask.
"""  # noqa: E501


def conversation(name: str) -> Episode:
    """The team's one conversation. Raises ValueError if it fails."""
    flow = resolve("workflow", name, key="docs")
    tokenizer = load_tokenizer("tiny:math")
    agents, left = {}, {}
    for entry, texts in SAYS[name].items():
        agent, _, role = entry.partition(" (")
        left[agent] = iter(texts)
        engine = ScriptedEngine(tokenizer, lambda request: next(left[request.policy]))
        role = role.removesuffix(")") or agent
        agents[agent] = Agent(
            agent, Policy(agent, tokenizer, engine), role, sampling=Sampling(max_tokens=500),
            parser=flow.parsers.get(role),
            tools=ToolUse((Stateless(python),), format="code") if agent == "executor" else None,
        )  # fmt: skip
    context = RolloutContext(agents, flow, OPTIONS.get(name, {}), Anything(name), rewards={})

    async def main() -> Episode:
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await play(context, Task("t", "the task"), step=0)

    episode = asyncio.run(main())
    if episode.error:
        raise ValueError(f"{name}: {episode.error}")
    return episode


def columns(turns: list[Turn]) -> dict[str, int]:
    """Turn id -> when it could be said: later than what it reads and than the agent's last."""
    found: dict[str, int] = {}
    last: dict[str, int] = {}
    for turn in turns:
        before = [found[parent] for parent in turn.parents]
        last[turn.agent] = found[turn.id] = 1 + max([*before, last.get(turn.agent, -1)], default=-1)
    return found


def draw(name: str, path: Path) -> None:
    episode = conversation(name)
    when = columns(episode.turns)
    lanes = list(dict.fromkeys(turn.agent for turn in episode.turns))
    entries = {entry.partition(" (")[0]: entry for entry in SAYS[name]}
    width, height = max(when.values()) + 1, len(lanes)
    figure = Figure(figsize=(2.4 + 1.3 * width, 0.8 + 0.75 * height))
    axes = figure.add_axes((0, 0, 1, 1))
    place = {turn.id: (when[turn.id], -lanes.index(turn.agent)) for turn in episode.turns}
    for lane, agent in enumerate(lanes):
        axes.plot([-0.3, width - 0.7], [-lane, -lane], color="#dddddd", lw=1, zorder=0)
        axes.text(-0.45, -lane, entries[agent], ha="right", va="center", fontsize=10)
    for turn in episode.turns:
        for parent in turn.parents:
            across = abs(place[parent][1] - place[turn.id][1])
            bend = -0.35 if across == 0 else 0.15 if across > 1 else 0.0
            axes.annotate(
                "", place[turn.id], place[parent], zorder=1,
                arrowprops={
                    "arrowstyle": "-|>", "color": "#777777", "lw": 1, "shrinkA": 8, "shrinkB": 9,
                    "connectionstyle": f"arc3,rad={bend}",
                },
            )  # fmt: skip
    for turn in episode.turns:
        x, y = place[turn.id]
        colour = COLOURS[lanes.index(turn.agent) % len(COLOURS)]
        axes.plot([x], [y], "o", ms=15, color=colour, zorder=2)
        if turn.tools.calls:
            axes.text(x, y - 0.33, "calls a tool", ha="center", va="center", fontsize=8)
        elif turn.observation and turn.agent != "executor":
            axes.text(x, y - 0.33, "sees the world", ha="center", va="center", fontsize=8)
    axes.set_xlim(-2.2, width - 0.5)
    axes.set_ylim(-height + 0.35, 0.8)
    axes.axis("off")
    with matplotlib.rc_context({"svg.hashsalt": "rolecall", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})


def page() -> str:
    parts = [HEAD]
    for name in sorted(SAYS):
        flow = resolve("workflow", name, key="docs")
        module = inspect.getmodule(flow.play)
        options = list(inspect.signature(flow.play).parameters.values())[3:]
        named = ", ".join(f"`{option.name}`" for option in options)
        paragraphs, _ = paragraphs_and_meanings(flow.play, frozenset(o.name for o in options))
        parts += [
            f"## {name}\n",
            f"{shown(textwrap.dedent(inspect.getdoc(module) or '').strip())}\n",
            f"![{name}](teams/{name}.svg)\n",
            *(f"{shown(paragraph)}\n" for paragraph in paragraphs),
            f"Options: [{named}](options.md#workflow-{name}).\n" if named else "No options.\n",
        ]
    return "\n".join(parts)


def main() -> None:
    drawn = set(BUILT_IN["workflow"]) - {"external", "remote"}  # conversations of others
    assert set(SAYS) == drawn, "a team has no conversation here"
    folder = HERE / "teams"
    folder.mkdir(exist_ok=True)
    for name in SAYS:
        draw(name, folder / f"{name}.svg")
    (HERE / "teams.md").write_text(page())


if __name__ == "__main__":
    main()
