"""Writes what a good agent says to price an order with its tools."""

from __future__ import annotations

import json

from rolecall.core.interfaces.demonstrator import Line, Scene

NEEDED = frozenset({"calculator", "world"})


def demonstrate(scene: Scene) -> Line:
    """Look up the goods, then the town if it matters, calculate, and answer.

    Raises ValueError for another workflow than `single`, missing tools, or a task without facts.
    """
    if scene.workflow != "single":
        raise ValueError(
            "environment tool_use writes demonstrations for workflow single alone (it is "
            f"{scene.workflow!r})"
        )
    if missing := NEEDED - scene.tools:
        raise ValueError(f"its demonstrations call {', '.join(sorted(missing))}; add it to tools")
    info = scene.task.info
    if "expression" not in info or "lookups" not in info:
        raise ValueError(f"task {scene.task.id} has no facts to demonstrate")
    goods = [name for name in info["lookups"] if name in scene.question]
    towns = [name for name in info["lookups"] if name not in scene.question]
    lines = [[_call("lookup", name=name) for name in names] for names in (goods, towns) if names]
    lines += [
        [_call("calculator", expression=info["expression"])],
        [f"<answer>{scene.task.answer}</answer>"],
    ]
    return Line("\n".join(lines[len(scene.own)]))


def _call(tool: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"
