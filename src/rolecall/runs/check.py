"""`rolecall check` says what a config would do; it reads data and model configs, but no weights."""

from __future__ import annotations

import inspect
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rolecall.config.load import find
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.json_types import Record
from rolecall.monitor.terminal import notices
from rolecall.runs.agents_table import agents_table, describe_agents
from rolecall.runs.run_paths import is_run
from rolecall.runs.stage_list import is_staged, read
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.open_environment import Opened, open_components
from rolecall.setup.plan import Plan, load_plan
from rolecall.setup.run_length import limit_steps
from rolecall.setup.validate_algorithms import num_candidates
from rolecall.setup.validate_models import check_adapters
from rolecall.storage.run_folder import STAGES, RunFolder


def check(source: str, overrides: list[str], *, num_tasks: int | None = None) -> Record:
    """Print and return the resolved team.

    With `num_tasks` so many tasks are played, and the diagnosis is printed and returned as `try`.
    Raises ConfigError with all problems; where data, rewards or tools are missing, after the rest
    was printed.
    """
    path = Path(source)
    if num_tasks is None and is_staged(path, overrides):
        return {
            "stages": _check_stages(path / STAGES if path.is_dir() else find(source), overrides)
        }
    file = RunFolder.existing(path).config if is_run(path) else find(source)
    plan = load_plan(file, overrides)
    try:
        opened = open_components(plan)
    except ConfigError:
        show(describe_plan(plan, None))
        raise
    absent = _check_models(plan)
    summary = describe_plan(plan, opened) | {"not_on_this_machine": absent}
    show(summary)
    if num_tasks is not None:
        from rolecall.runs.try_tasks import try_tasks  # with PyTorch

        plan = load_plan(file, [*overrides, f"rollout.groups={num_tasks}"])
        diagnosis = try_tasks(plan)
        PlainConsole().print("\n".join(diagnosis.lines()), soft_wrap=True, highlight=False)
        summary["try"] = diagnosis.record()
    return summary


def _check_models(plan: Plan) -> list[str]:
    """Check adapters and chat templates. Return the bases that are not here to be looked at.

    Raises ConfigError with all problems.
    """
    from rolecall.setup.local_tokenizers import load_local_tokenizers  # with transformers
    from rolecall.setup.templates import check_templates

    problems = list(check_adapters(plan.config))
    absent: list[str] = []
    try:
        with notices(PlainConsole()):
            tokenizers, absent = load_local_tokenizers(plan.config)
            check_templates(plan.config, tokenizers)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise plan.config.locate_problems(problems)
    return absent


def _check_stages(file: Path, overrides: list[str]) -> Record:
    """Check each stage and return what its own config would do."""
    summaries = {}
    for planned in read(file, overrides):
        PlainConsole().print(f"Stage {planned.name}: {planned.stage.kind}", highlight=False)
        if planned.stage.source is not None:
            planned.config.rollout.data = None  # its file is not there yet
        plan = planned.plan if planned.stage.source is None else _without_experts(planned.plan)
        opened = open_components(plan)
        absent = _check_models(plan)
        has_data = planned.stage.source is None
        summary = describe_plan(plan, opened, has_data=has_data)
        summaries[planned.name] = summary | {"not_on_this_machine": absent}
        show(summaries[planned.name])
    return summaries


def _without_experts(plan: Plan) -> Plan:
    """Return a plan whose algorithms look for no file of experts, which a stage will write."""
    algorithms = {
        name: one if one.demonstrations is None else one.model_copy(update={"experts": ""})
        for name, one in plan.algorithms.items()
    }
    return replace(plan, algorithms=algorithms)


def describe_plan(plan: Plan, opened: Opened | None, *, has_data: bool = True) -> Record:
    """Return a description of the plan, with effective values.

    `has_data`: False for a stage whose data an earlier one will write, so that its steps cannot be
    counted from epochs.
    """
    from rolecall.memory.estimate import (
        estimate_memory,  # with transformers: what is wrong is told before
    )

    config = plan.config
    return {
        "workflow": {
            "name": config.workflow.name,
            "about": " ".join((inspect.getdoc(plan.workflow.play) or "").split("\n\n")[0].split()),
            "roles": list(plan.workflow.roles),
        },
        "agents": describe_agents(plan),
        "step": _step(plan, opened, has_data=has_data),
        "memory": [asdict(need) for need in estimate_memory(config, activations="none")],
    }


def _step(plan: Plan, opened: Opened | None, *, has_data: bool) -> Record:
    rollout, evaluation = plan.config.rollout, plan.config.evaluation
    counts: Record = dict.fromkeys(("train", "test", "validation"), "unknown")
    trainer, steps = plan.config.trainer, None
    if trainer.epochs is None:
        steps = trainer.steps
    elif opened is not None and has_data and plan.config.rollout.data is None:
        steps = limit_steps(plan.config, len(opened.tasks.sampler.train))
    if opened is not None:
        tasks = opened.tasks
        number = len(tasks.sampler.train)
        counts["train"] = "without end" if number >= ENDLESS else number
        counts |= {"test": len(tasks.test), "validation": len(tasks.validation)}
    return {
        "tasks": rollout.groups,
        "attempts": rollout.group_size,
        "candidates": num_candidates(plan.config, plan.workflow),
        "episodes": rollout.groups * rollout.group_size,
        "steps": steps,
        "epochs": trainer.epochs,
        "available_tasks": counts,
        "evaluation_attempts": evaluation.samples,
        "evaluation_sampling": evaluation.sampled_with,
        "rewards": {name: weight for name, (_, weight) in plan.rewards.items()},
    }


def _length(step: Record) -> str:
    steps, epochs = step["steps"], step["epochs"]
    return f"{epochs:g} epochs" if steps is None else f"{steps} steps"


def show(found: Record, console: Console | None = None) -> None:
    """Tables of what `described` found."""
    console = console or PlainConsole()
    flow, step = found["workflow"], found["step"]
    roles = ", then ".join(flow["roles"]) or "agents by name"
    console.print(f"Workflow {flow['name']}: {roles}. {flow['about']}", highlight=False)
    console.print(agents_table(found["agents"]))
    console.print(
        f"A step: {step['tasks']} tasks x {step['attempts']} attempts = {step['episodes']} "
        f"episodes; {_length(step)}. Tasks: "
        + ", ".join(f"{split} {number}" for split, number in step["available_tasks"].items())
        + f"; {_attempts(step)} in an evaluation. Rewards: "
        + ", ".join(f"{name} x {weight:g}" for name, weight in step["rewards"].items())
        + ".",
        highlight=False,
    )
    memory = Table("whose", "what", "parameters", "memory", title="Memory", title_justify="left")
    for need in found["memory"]:
        count, size = need["parameters"], need["num_bytes"]
        memory.add_row(
            need["owner"],
            need["part"],
            f"{count:,}" if count else "",
            "unknown: not on this machine" if size is None else f"{size / 1e9:,.3f} GB",
        )
    console.print(memory)
    if absent := found.get("not_on_this_machine"):
        console.print(
            f"Not on this machine, so their tokenizers and chat templates were not checked: "
            f"{', '.join(absent)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    console.print("Activations come on top: `rolecall plan` says how much, and what fits.")


def _attempts(step: Record) -> str:
    """Return `8 attempts at each`, or `aime 16, default 1 attempts at each with temperature
    0.6`."""
    number, other = step["evaluation_attempts"], step["evaluation_sampling"]
    counts = (
        ", ".join(f"{k} {n}" for k, n in number.items()) if isinstance(number, dict) else number
    )
    ways = ", ".join(f"{name} {value:g}" for name, value in other.items())
    return f"{counts} attempts at each" + (f" with {ways}" if ways else "")
