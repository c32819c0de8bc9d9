"""Prints what each turn of an episode gained or lost."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolecall.explain.blame import Blame, TurnGain
from rolecall.explain.replays import Estimate, describe_replays, show_estimate
from rolecall.runtime.visible_text import visible


def print_blame(result: Blame, console: Console) -> None:
    """Print a row for each turn, what each agent gained, and the verdict."""
    console.print(
        Text(
            f"{visible(result.episode)} scored {result.score:g}; before its first turn the team "
            f"could expect {show_estimate(result.expected)}"
        ),
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("turn", no_wrap=True)
    table.add_column("agent", no_wrap=True)
    for name in ("before", "after", "gain", "vs. silence", "vs. base"):
        table.add_column(name, justify="right", no_wrap=True)
    for turn in result.turns:
        table.add_row(
            Text(turn.turn.removeprefix(f"{result.episode}/")),
            Text(visible(turn.agent)),
            f"{turn.before.mean:.2f}",
            f"{turn.after.mean:.2f}",
            Text(show_estimate(turn.gain, sign=True), style=_style(turn.gain)),
            "" if turn.over_silence is None else f"{turn.over_silence.mean:+.2f}",
            "" if turn.over_base is None else f"{turn.over_base.mean:+.2f}",
        )
    console.print(table)
    gains = ", ".join(f"{visible(name)} {gain:+.2f}" for name, gain in result.gains.items())
    console.print(f"by agent: {gains}", highlight=False, soft_wrap=True)
    console.print(Text(verdict(result), style="bold"), soft_wrap=True)
    replays = describe_replays(
        result.num_replays, result.num_failed, result.seconds, result.weights
    )
    console.print(replays, highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(Text(visible(note), style="yellow"), soft_wrap=True)


def verdict(result: Blame) -> str:
    """Return in a sentence which turn decided the episode."""
    if (culprit := result.culprit) is not None:
        return f"{_name(culprit, result)} lost it: {_path(culprit)}"
    if (saviour := result.saviour) is not None:
        return f"{_name(saviour, result)} won it: {_path(saviour)}"
    return "no single turn decided it: each is within what chance does"


def _name(turn: TurnGain, result: Blame) -> str:
    return f"{visible(turn.agent)}'s turn {turn.turn.removeprefix(f'{result.episode}/')}"


def _path(turn: TurnGain) -> str:
    spoken = " ".join(visible(turn.text).split())
    cut = "..." if len(spoken) > 60 else ""
    return f"{turn.before.mean:.2f} -> {turn.after.mean:.2f}, by {spoken[:60]!r}{cut}"


def _style(gain: Estimate) -> str:
    return "green" if gain.is_gain else "red" if gain.is_loss else ""
