"""`rolecall crossplay`: agents of one run's checkpoint with, or against, those of other runs."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.environments.games.exploitability import exploitability
from rolecall.monitor import terminal
from rolecall.monitor.comparison import Measure
from rolecall.runs.local_plan import load_local_plan
from rolecall.runs.services import running
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.visible_text import visible
from rolecall.setup.build import build
from rolecall.setup.plan import Plan
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.whole_files import write_atomically
from rolecall.training import train_step
from rolecall.training.crossplay import check_fit, choose_agent, matrices, plain, play_teams
from rolecall.training.run import Run
from rolecall.training.strategies import list_deals, measure_exploitability

if TYPE_CHECKING:
    from rolecall.rollout.evaluation_summary import Score
    from rolecall.training.crossplay import Team
    from rolecall.training.strategies import Exploitability


console = PlainConsole()
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FILE = "crossplay.json"


def crossplay(
    given: list[str], overrides: list[str], *, checkpoint_name: str, output: Path | None
) -> Record:
    """Print, write and return {"runs": {"A": {..}}, "teams": [..], "matrices": [..]}.

    Runs of a game whose deals are listed also have
    {"exploitability": {"uniform": .., "runs": {"A": [..]}}}.

    The tasks, workflow and environment are those of the first run; all runs are in memory at once.
    Raises ConfigError where teams do not fit.
    """
    folders = _folders(given)
    file = output or folders["A"].evaluated / FILE
    if file.is_dir():
        raise ConfigError(f"--output {file} is a folder; name a JSON file")
    plans = {name: _plan(folder, overrides) for name, folder in folders.items()}
    named = {f"{name} ({folders[name].path})": plan.config for name, plan in plans.items()}
    if problem := check_fit(named):
        raise ConfigError(f"crossplay: {problem}")
    with ExitStack() as stack, ExitStack() as until_read:
        saved = {
            name: until_read.enter_context(checkpoint.held(folder, checkpoint_name))
            for name, folder in folders.items()
        }
        stack.enter_context(terminal.notices(console))
        runs: dict[str, Run] = {}
        for name, plan in plans.items():
            runs[name] = build(plan)
            stack.enter_context(running(runs[name]))
            runs[name].restore(saved[name])
        until_read.close()
        agents = list(runs["A"].context.agents)
        results, measured = asyncio.run(_played(runs, agents))
    record = {
        "runs": {
            n: {"path": str(f.path), "step": checkpoint.checkpoint_step(saved[n])}
            for n, f in folders.items()
        },
        "overrides": overrides,
        "num_tasks": len(runs["A"].test),
        "samples": runs["A"].config.evaluation.samples,
        "teams": plain(agents, results),
        "matrices": matrices(agents, list(runs), results),
    }
    if measured:
        record["exploitability"] = {
            "uniform": exploitability(list_deals(runs["A"].context), [{}, {}]),
            "runs": {name: [asdict(one) for one in each] for name, each in measured.items()},
        }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(record, indent=2) + "\n")
    show(record)
    console.print(f"Wrote {file}", soft_wrap=True, highlight=False)
    return record


def _folders(given: list[str]) -> dict[str, RunFolder]:
    if not 2 <= len(given) <= len(LETTERS):
        raise ConfigError(
            f"crossplay: {len(given)} runs are named; write 2 to {len(LETTERS)} run folders"
        )
    return {
        letter: RunFolder.existing(Path(path)) for letter, path in zip(LETTERS, given, strict=False)
    }


def _plan(folder: RunFolder, overrides: list[str]) -> Plan:
    plan = load_local_plan(folder, overrides, command="crossplay plays")
    if plan.config.evaluation.tasks == 0:
        raise ConfigError("evaluation.tasks: 0 leaves nothing to play; write at least 1")
    return plan


async def _played(
    runs: dict[str, Run], agents: list[str]
) -> tuple[dict[Team, dict[str, Score]], dict[str, list[Exploitability]]]:
    """Return the scores of all teams, and the exploitability of each run where its game has one."""
    asyncio.get_running_loop().set_task_factory(task_factory)
    for run in runs.values():
        await train_step.publish(run, list(run.learners))
    scores, first = await play_teams(runs, agents=agents), runs["A"]
    measured = {}
    if list_deals(first.context):
        for name, run in runs.items():
            members = {agent: choose_agent(run, agent) for agent in agents}
            context = replace(first.context, agents=members)
            measured[name] = await measure_exploitability(context, first.config.evaluation)
    return scores, measured


def show(record: Record, *, console: Console = console) -> None:
    """Print a table for each matrix."""
    for name, run in record["runs"].items():
        line = f"{name}: {visible(run['path'])}, step {run['step']}"
        console.print(Text(line), soft_wrap=True)
    for matrix in record["matrices"]:
        whose = "the team's score" if matrix["of"] == "team" else f"{matrix['of']}'s own score"
        others = ", ".join(matrix["others"])
        title = f"\n{whose}: {matrix['agent']} of the row's run, {others} of the column's"
        console.print(Text(visible(title)), soft_wrap=True)
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("", *matrix["runs"]):
            table.add_column(name, no_wrap=True)
        for name, means, margins in zip(
            matrix["runs"], matrix["mean"], matrix["margin"], strict=True
        ):
            cells = [Measure(*pair) for pair in zip(means, margins, strict=True)]
            table.add_row(name, *map(str, cells))
        console.print(table)
    if measured := record.get("exploitability"):
        _show_exploitability(measured, console)


def _show_exploitability(measured: Record, console: Console) -> None:
    """Print a line for each run and agent, with how its strategy was read."""
    console.print(Text("\nexploitability: what a perfect opponent wins in a game"))
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "agent", "exploitability", "read from"):
        table.add_column(name)
    for name, each in measured["runs"].items():
        for one in each:
            source = (
                f"{one['samples']} sampled moves a view"
                if one["samples"]
                else f"log-probs (bare actions: {one['bare']:.2f})"
            )
            table.add_row(name, visible(one["agent"]), f"{one['exploitability']:.4f}", source)
    table.add_row("", "uniform play", f"{measured['uniform']:.4f}", "")
    console.print(table)
