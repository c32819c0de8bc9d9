"""Demonstrates players of Kuhn poker who know the rules of a move and nothing of cards."""

from __future__ import annotations

import re

from rolecall_lab.tiny.demonstrations.scene import Scene

PLAYER = {"moves": 70, "talks": 30}
CHOICES = re.compile(r"You may: (.+)")


def self_play(scene: Scene) -> str:
    """A move in brackets as the rules ask for it, or one that is only talked of."""
    offered = CHOICES.findall(scene.shown)[-1]
    move: str = scene.random.choice(re.findall(r"\[(\w+)\]", offered))
    return f"[{move}]" if scene.habit(PLAYER) == "moves" else f"I {move}."
