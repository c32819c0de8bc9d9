"""Reads the form that an agent's turn promises, and returns None where the turn lacks it."""

from __future__ import annotations

from rolecall.agents.agent import Parser
from rolecall.core.renamed import answer_old_names
from rolecall.core.tags import find_box, find_program
from rolecall.core.types import Turn


def parse_boxed(turn: Turn) -> str | None:
    """Return the content of the last \\boxed{} after thinking."""
    return find_box(turn.text)


def parse_choice(tag: str, *values: str) -> Parser:
    """Return the content of `<tag>...</tag>` if it is one of the values, in any case.

    The turn's `verdict` keeps it, so that the shares of the values are among the metrics.
    """

    def parse(turn: Turn) -> str | None:
        value = turn.tag(tag)
        if value not in values:
            return None
        turn.verdict = value
        return value

    return parse


def parse_tag(tag: str) -> Parser:
    """Return the content of `<tag>...</tag>`, if there is any."""

    def parse(turn: Turn) -> str | None:
        return turn.tag(tag) or None

    return parse


def parse_fence(turn: Turn) -> str | None:
    """Return the last fenced python block after thinking, or a bare block if it is the only one."""
    return find_program(turn.visible)


__getattr__ = answer_old_names(
    __name__,
    {
        "boxed": "parse_boxed",
        "fenced": "parse_fence",
        "one_of": "parse_choice",
        "tagged": "parse_tag",
    },
)
