"""Gives each agent one colour for the curves, the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    """One hue in three places."""

    light: str  # on white paper: a contrast of at least 4.5 to 1
    dark: str  # on black paper
    terminal: str  # a colour name of rich that terminals map to their own theme


COLOURS = (
    Colour("#1d5fd1", "#7ab7ff", "blue"),
    Colour("#b4470c", "#ffa263", "dark_orange"),
    Colour("#12783a", "#62d492", "green"),
    Colour("#8a2fd6", "#cda2ff", "magenta"),
    Colour("#0b7285", "#5fd3e4", "cyan"),
    Colour("#b91f6a", "#ff94c5", "hot_pink"),
    Colour("#7d5a00", "#e3bf55", "yellow"),
)


def colours(agents: Iterable[str]) -> dict[str, Colour]:
    """Return a colour for each agent, by sorted name, so that who speaks first does not matter."""
    names = sorted(set(agents))
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
