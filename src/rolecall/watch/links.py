"""Writes the addresses of the page's views, relative to the page."""

from __future__ import annotations

from urllib.parse import urlencode

from rolecall.watch.models import Link

SHOWN = 3  # examples behind a reason


def link_view(view: str, text: str, **query: object) -> Link:
    """Return a link such as `talk?run=math&step=3&episode=3%3Aadd-1%3A0`."""
    named = {name: value for name, value in query.items() if value is not None}
    return Link(text=text, href=f"{view}?{urlencode(named)}")


def link_turn(run: str, step: int, episode: str, turn: str) -> Link:
    """Return a link to a turn inside of its conversation."""
    return link_view("talk", turn, run=run, step=step, episode=episode, turn=turn)


def link_episode(run: str, step: int, episode: str) -> Link:
    return link_view("talk", episode, run=run, step=step, episode=episode)
