"""Checks that a team can be asked by a program that keeps the conversation itself."""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.algorithms.base import Algorithm
from rolecall.config.schema import Config
from rolecall.workflows.base import Workflow


def check_external(
    config: Config, flow: Workflow, algorithms: dict[str, Algorithm]
) -> Iterator[str]:
    """Yield what does not fit a workflow whose conversation is kept elsewhere."""
    if not flow.is_external:
        return
    options = config.workflow.options
    if sum(bool(options.get(name)) for name in ("function", "command", "url")) != 1:
        yield (
            "workflow: write one of `function: path/to/file.py:name`, `command: [program, ...]` "
            "and `url: http://...`"
        )
    for name, agent in config.team.items():
        if agent.tools is not None:
            yield f"team.{name}.tools: the program calls its tools itself; remove them"
        if agent.memory:
            yield f"team.{name}.memory: the program keeps the conversation itself; remove it"
    for name, algorithm in algorithms.items():
        label = (config.team[name].algorithm or config.algorithm).name
        kind = type(algorithm)
        if kind.prepare is not Algorithm.prepare:
            yield f"algorithm: {label} replays episodes, which a program outside does not; use rloo"
        if kind.chooser is not Algorithm.chooser or kind.judge is not Algorithm.judge:
            yield f"algorithm: {label} chooses or judges each answer before it is given; use drmas"
