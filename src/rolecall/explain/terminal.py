"""Prints explanations of credit in the terminal. Model text is never read as markup."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rolecall.core.json_types import Record
from rolecall.explain.turns import Explanation, explain
from rolecall.monitor.dialogue import choose_style
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.visible_text import visible
from rolecall.storage.run_folder import RunFolder

LONGEST_TEXT = 300  # letters of what the turn said


def show_why(
    folder: RunFolder, name: str, *, step: int | None = None, quiet: bool = False
) -> list[Record]:
    """Print why a turn, or each turn of an episode, got its advantages; `quiet` prints nothing.

    Returns the same as plain data. Raises ConfigError where there is none of that name.
    """
    console = PlainConsole(quiet=quiet)
    explanations = explain(folder, name, step=step)
    for number, one in enumerate(explanations):
        if number:
            console.print()
        _print_one(one, console)
    return [asdict(one) for one in explanations]


def _print_one(one: Explanation, console: Console) -> None:
    head = Text.assemble((visible(one.agent), "bold"), f"  {visible(one.turn)}  ")
    if one.advantage is None:
        head.append("no advantage", style="yellow")
    else:
        head.append(f"advantage {one.advantage:+.3g}", style=choose_style(one.advantage))
        head.append(_tokens(one))
    console.print(head)
    spoken = " ".join(visible(one.text).split())
    cut = "..." if len(spoken) > LONGEST_TEXT else ""
    lines = [Text(f"{spoken[:LONGEST_TEXT]}{cut}", style="dim")] if spoken else []
    lines.append(Text(_earned(one)))
    if one.coach:
        lines.append(Text(f"coach: {visible(one.coach)}"))
    for reason in one.reasons:
        lines.append(Text(visible(reason.sentence)))
        if reason.formula:
            lines.append(Text(f"  {visible(reason.formula)}", style="cyan"))
    if one.samples:
        lines.append(_samples(one))
    if one.weight != 1.0:
        lines.append(Text(f"its loss counts {one.weight:.3g} times"))
    if one.note:
        lines.append(Text(visible(one.note), style="yellow"))
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _tokens(one: Explanation) -> str:
    if one.first_and_last is None:
        return ""
    first, last = one.first_and_last
    if one.tokens == 1:
        return " on its token"
    if first == last:
        return f" on each of {one.tokens} tokens"
    return f", from {first:+.3g} to {last:+.3g} over {one.tokens} tokens"


def _earned(one: Explanation) -> str:
    own = "".join(f", {visible(name)} {value:+.3g}" for name, value in one.rewards.items())
    return f"earned: outcome {one.outcome:.3g}{own}"


def _samples(one: Explanation) -> Text:
    line = Text("compared: ")
    for number, sample in enumerate(one.samples):
        is_this = sample.turn == one.turn
        line.append(" " if number else "")
        line.append(f"{sample.score:.3g}", style="bold underline" if is_this else "")
    return line
