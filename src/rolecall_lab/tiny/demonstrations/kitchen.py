"""Demonstrates two cooks: one who sees what is needed, one in the way, one who stands about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from rolecall.algorithms.read import refusal
from rolecall.core.types import Episode, Task, Turn
from rolecall.environments.kitchen.environment import read_action, read_kitchen
from rolecall.environments.kitchen.rules import ACTIONS, Kitchen, best_action, most_soups
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene

COOK = {"helps": 45, "grabs": 35, "waits": 20}
ASKED_AGAIN = {"helps": 75, "grabs": 15, "waits": 10}
STEPS = re.compile(r"Steps left: (\d+)\. Pot: (.+?)\. Cook 1 holds (.+?)\. Cook 2 holds (.+?)\.")
TAGS = (*(f"[{action}]" for action in ACTIONS), "[cook_1]", "[cook_2]")


def drills(tasks: Sequence[Task], number: int) -> list[Drill]:
    """Return kitchens at any time of an episode, and what each cook does best in them."""
    random = Random(0)
    examples: list[Drill] = []
    for task in tasks[: number // 2]:
        kitchen = read_kitchen(task.info)
        kitchen = replace(kitchen, steps=random.randint(2, kitchen.steps))
        if most_soups(kitchen) == 0:
            continue
        first, heard = best_action(kitchen), random.choice(ACTIONS)
        second = best_action(kitchen, heard)
        examples += [
            (_asked(1, kitchen.view()), f"[{first}]<|end|>"),
            (_asked(2, f"{kitchen.view()}\n\n[cook_1]\n[{heard}]"), f"[{second}]<|end|>"),
        ]
    return examples


def _asked(cook: int, words: str) -> str:
    return f"<|system|>You are cook {cook}.<|end|><|user|>{words}<|end|><|assistant|>"


def in_turn(scene: Scene) -> str:
    """The action that the team needs, one that needs empty hands, or none."""
    *_, newest = STEPS.finditer(scene.shown)
    kitchen = _read(scene, newest)
    heard = scene.shown[newest.end() :].rpartition("[cook_1]")[2] if _is_second(scene) else None
    habit = scene.habit(ASKED_AGAIN if "Propose something better" in scene.shown else COOK)
    if habit == "waits":
        return "[wait]"
    if habit == "grabs":
        return f"[{scene.random.choice(ACTIONS[:3])}]"
    return f"[{best_action(kitchen, None if heard is None else read_action(heard[:40]))}]"


def _is_second(scene: Scene) -> bool:
    return "You are cook 2" in scene.shown


def _read(scene: Scene, shown: re.Match[str]) -> Kitchen:
    size, time = scene.task.info["size"], scene.task.info["time"]
    steps, pot, *hands = shown.groups()
    numbers = [int(number) for number in re.findall(r"\d+", pot)]
    is_full = "of" not in pot
    return Kitchen(
        onions=size if is_full else numbers[0],
        cooking=numbers[0] if is_full and numbers else 0 if is_full or not numbers[0] else time,
        hands=(hands[0], hands[1]),
        steps=int(steps),
        size=size,
        time=time,
    )


@dataclass(slots=True)
class SendsSomeBack:
    """Sends proposals back at random, in the words of ReAd, so that they are known to the model."""

    random: Random
    share: float = 0.15
    max_refine: int = 2

    async def __call__(self, turn: Turn, episode: Episode) -> str:
        if self.random.random() >= self.share:
            return ""
        before = self.random.uniform(0.2, 1.0)
        return refusal(before, before - self.random.uniform(0.0, 0.3))
