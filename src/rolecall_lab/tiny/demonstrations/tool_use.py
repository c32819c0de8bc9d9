"""Demonstrates orders priced with tools, by one agent or by a planner and its workers."""

from __future__ import annotations

import json
import re

from rolecall.core.types import Task
from rolecall.environments.tool_use.environment import GOODS, TOWNS
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene

BUYER = {"looks_up": 55, "guesses": 45}
PLANNER = {"hands_out": 55, "guesses": 45}
SUMS = {"calculates": 60, "guesses": 40}
ANSWER = {"tagged": 75, "plain": 25}
ORDERED = re.compile(r"(\d+) x (\w+)")
COSTS = re.compile(r"A (\w+) costs (\d+) coins")
REPORTED = re.compile(r"\[worker_\d\]\s*(?:<answer>|It is )(\d+)")
RESULT = re.compile(r"<tool_response>\s*(\d+)\s*</tool_response>")
ALONE = (  # without a planner
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<answer>", "</answer>", '{"name": "lookup", "arguments": {"name": "', '"}}'),
    *('{"name": "calculator", "arguments": {"expression": "', *GOODS, *TOWNS),
)
TAGS = ("<subtask>", "</subtask>", "[worker_1]", "[worker_2]", *ALONE)


def answer_prices(scene: Scene) -> str:
    """An agent that looks prices up, calculates and answers. Raises ValueError for other tasks."""
    if "expression" not in scene.task.info:
        raise ValueError(f"task {scene.task.id} is no order to be priced")
    orders = ORDERED.findall(_asked(scene))
    if done := RESULT.findall(scene.shown):
        return _told(scene, done[-1])
    prices = dict(COSTS.findall(scene.shown))
    if not prices:
        if scene.habit(BUYER) == "guesses":
            return _guess(scene)
        return _look_up(orders)
    return _sum(scene, _costs(orders, prices))


def planner_workers(scene: Scene) -> str:
    """A planner hands each part of an order to a worker and adds up what they report."""
    if scene.role == "worker":
        return answer_prices(scene)
    if done := RESULT.findall(scene.shown):
        return _told(scene, done[-1])
    orders = ORDERED.findall(_asked(scene))
    reported = REPORTED.findall(scene.shown)
    if "<|assistant|><subtask>" not in scene.shown:
        if scene.habit(PLANNER) == "guesses":
            return _guess(scene)
        return "\n".join(f"<subtask>{number} x {thing}</subtask>" for number, thing in orders)
    if len(reported) < len(orders):
        return _guess(scene)
    return _told(scene, reported[0]) if len(orders) == 1 else _sum(scene, reported)


def drill(task: Task) -> list[Drill]:
    """Return what to look up, what to calculate and what to answer, as drills."""
    orders, facts = ORDERED.findall(task.prompt), task.info["facts"]
    facts_read = "\n".join(_response(facts[thing]) for _, thing in orders)
    expression = "+".join(_costs(orders, dict(COSTS.findall(facts_read))))
    return [
        (f"{task.prompt}\n", _look_up(orders)),
        (f"{task.prompt}\n{facts_read}\n", _call("calculator", expression=expression)),
        (f"{task.prompt}\n{_response(task.answer)}\n", f"<answer>{task.answer}</answer>"),
    ]


def _response(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


def _look_up(orders: list[tuple[str, str]]) -> str:
    return "\n".join(_call("lookup", name=thing) for _, thing in orders)


def _costs(orders: list[tuple[str, str]], prices: dict[str, str]) -> list[str]:
    return [f"{number}*{prices[thing]}" for number, thing in orders]


def _asked(scene: Scene) -> str:
    """Return the first message to the agent: the whole order, or a worker's part of it."""
    return scene.shown.split("<|user|>")[1].split("<|end|>")[0]


def _sum(scene: Scene, parts: list[str]) -> str:
    if scene.habit(SUMS) == "guesses":
        return _guess(scene)
    return _call("calculator", expression="+".join(parts))


def _call(tool: str, **arguments: str) -> str:
    written = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>{written}</tool_call>"


def _told(scene: Scene, value: str) -> str:
    return f"<answer>{value}</answer>" if scene.habit(ANSWER) == "tagged" else f"It is {value}."


def _guess(scene: Scene) -> str:
    return f"<answer>{scene.random.randint(100, 2000)}</answer>"
