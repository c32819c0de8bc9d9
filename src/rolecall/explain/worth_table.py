"""Prints how a team compares with what could take its place, on one page."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolecall.explain.worth import BUDGETS, LEAST, Budget, Choice, Worth
from rolecall.monitor.comparison import Measure
from rolecall.runtime.visible_text import visible

EQUAL: dict[Budget, str] = {
    "tokens": "equal tokens",
    "latency": "equal latency",
    "price": "equal price",
}
PHRASES = {
    "one answer": "one answer",
    "majority": "the majority of {} answers",
    "likeliest": "the likeliest of {} answers",
}


def print_worth(result: Worth, console: Console) -> None:
    """Print the team, its variants, single agents at equal tokens, and a verdict in a sentence."""
    console.print(
        Text(
            f"{visible(result.source)}: the team scores {_show(result.score)} on "
            f"{result.num_tasks} tasks. An attempt takes {result.sampled:.0f} sampled tokens, "
            f"{result.serial:.0f} of them one after another, and costs {_price(result)}."
        ),
        soft_wrap=True,
    )
    if result.variants:
        console.print(_variant_table(result))
    if result.choices:
        console.print(_choice_table(result))
    for line in _notes(result):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(Text(verdict_sentence(result), style="bold"), soft_wrap=True)
    for budget in BUDGETS[1:]:
        console.print(verdict_sentence(result, budget), highlight=False, soft_wrap=True)
    for name, reason in result.not_possible.items():
        console.print(
            Text(f"not possible: {visible(name)} ({visible(reason)})", style="yellow"),
            soft_wrap=True,
        )


def verdict_sentence(result: Worth, budget: Budget = "tokens") -> str:
    """Return whether the team is worth what it spends, with the numbers that decide it."""
    verdict = result.verdict(budget)
    rival = verdict.rival
    if rival is None:
        return f"At {EQUAL[budget]}: no single agent could be played, so nothing is decided."
    numbers = (
        f"{_name(rival)}, scores {_show(rival.score)} and the team {_show(result.score)}, "
        f"which gains {_show(rival.gain, sign=True)}."
    )
    if rival.is_cut and verdict.is_worth != "no":
        numbers += " It could answer more often than was sampled; --answers samples more."
    if verdict.is_worth == "yes":
        if not any(one.arm.endswith("alone") for one in result.choices):
            numbers += " No agent could be played alone, so this says little."
        return f"At {EQUAL[budget]} the team is worth it. The best single agent, {numbers}"
    if verdict.is_worth == "no":
        return (
            f"At {EQUAL[budget]} the team is not worth it: it gains less than {LEAST:g}. The best "
            f"single agent, {numbers}"
        )
    more = result.tasks_to_decide(budget)
    if more is None:
        return (
            f"At {EQUAL[budget]} nothing is decided: one answer takes more than the team. The best "
            f"single agent, {numbers}"
        )
    each = -(-more // result.num_sources)  # of the tasks of a source
    return (
        f"At {EQUAL[budget]} these tasks do not decide it. The best single agent, {numbers} "
        f"If that stays, about {more} tasks decide (evaluation.tasks={each})."
    )


def _notes(result: Worth) -> list[str]:
    """Return what the tables leave out: marks, and arms that lack tasks."""
    notes = []
    if any(one.is_over for one in result.choices if one.budget == "tokens"):
        notes.append(">1: one answer takes more tokens than an attempt of the team")
    tasks = {one.name: one.num_tasks for one in result.variants}
    tasks |= {one.arm: one.num_tasks for one in result.choices}
    notes += [
        f"{visible(name)} is compared on {number} of {result.num_tasks} tasks; episodes of the "
        "others failed"
        for name, number in tasks.items()
        if number < result.num_tasks
    ]
    return notes


def _variant_table(result: Worth) -> Table:
    table = _table("Changes to the team", "team", "score", "team gains", "tokens", "serial")
    for one in result.variants:
        table.add_row(
            Text(visible(one.name)),
            _show(one.score),
            _gain(one.gain),
            f"{one.sampled:.0f}",
            f"{one.serial:.0f}",
        )
    return table


def _choice_table(result: Worth) -> Table:
    title = "One agent at equal tokens"
    table = _table(title, "agent", "answers", "keeps", "score", "team gains")
    previous = ""
    for one in result.choices:
        if one.budget == "tokens":
            name = "" if one.arm == previous else one.arm
            table.add_row(
                Text(visible(name)), _count(one), one.rule, _show(one.score), _gain(one.gain)
            )
            previous = one.arm
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for number, name in enumerate(columns):
        is_text = number == 0 or name == "keeps"
        table.add_column(name, justify="left" if is_text else "right", no_wrap=number > 0)
    return table


def _count(choice: Choice) -> str:
    over = ">" if choice.is_over else ""
    return f"{over}{choice.number:.1f}".removesuffix(".0")


def _name(choice: Choice) -> str:
    return f"{visible(choice.arm)} with {PHRASES[choice.rule].format(_count(choice))}"


def _price(result: Worth) -> str:
    if result.unit == "tokens":
        return f"{result.price:.0f} with a prompt token at a quarter of a sampled one"
    return f"{result.price:.2g} {result.unit}"


def _show(value: Measure, *, sign: bool = False) -> str:
    mean = f"{value.mean:+.2f}" if sign else f"{value.mean:.2f}"
    return mean if value.margin is None else f"{mean} +- {value.margin:.2f}"


def _gain(value: Measure) -> Text:
    """Return the team's gain: green where it is above its margin, red where it is below it."""
    margin = value.margin or 0.0
    style = "green" if value.mean > margin else "red" if value.mean < -margin else ""
    return Text(_show(value, sign=True), style=style)
