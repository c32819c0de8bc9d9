"""Prints which agents, turns and tokens moved the gradient of a step most."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolecall.monitor.credit_sentences import fmt, fmt_signed
from rolecall.runtime.visible_text import visible
from rolecall.watch.models import Norm, Spikes, SpikeToken

LETTERS = 32  # of the text around a token
AGENTS, TURNS = 6, 5  # rows


def print_spikes(answer: Spikes, number: int, console: Console) -> None:
    """Print norms, agents, turns, and the `number` tokens with the largest estimates."""
    console.print(f"step {answer.step} of {visible(answer.run)}", highlight=False)
    for norm in answer.norms:
        console.print(Text(describe_norm(norm, answer.median.get(norm.policy))), soft_wrap=True)
    table = _begin_table("agent", "policy", "optimizer step", "turns", "tokens", "share")
    for agent in answer.agents[:AGENTS]:
        table.add_row(
            Text(visible(agent.agent)), Text(visible(agent.policy)), str(agent.optimizer_step),
            f"{agent.turns:,}", f"{agent.tokens:,}", f"{agent.share:.0%}",
        )  # fmt: skip
    console.print(table)
    table = _begin_table("turn", "agent", "tokens", "advantage", "share")
    for turn in answer.turns[:TURNS]:
        table.add_row(
            Text(visible(turn.turn)), Text(visible(turn.agent)), f"{turn.tokens:,}",
            fmt_signed(turn.advantage), f"{turn.share:.0%}",
        )  # fmt: skip
    console.print(table)
    for rank, token in enumerate(answer.tokens[:number], start=1):
        for line in describe_token(rank, token):
            console.print(Text(line), soft_wrap=True)
    console.print(Text(answer.note), soft_wrap=True)
    for missing in answer.missing:
        console.print(Text(visible(f"{missing.what}: {missing.why}"), style="yellow"))


def describe_norm(norm: Norm, median: float | None) -> str:
    """Return a line such as `policy solver, optimizer step 2: gradient norm 4.1, usually 0.3`."""
    usual = "" if median is None else f", usually {fmt(median)}"
    size = "not finite" if norm.grad_norm is None else fmt(norm.grad_norm)
    own = [f"{visible(agent)} {fmt(n)}" for agent, n in norm.agents.items() if n is not None]
    by_agent = f" ({', '.join(own)})" if len(own) > 1 else ""
    return (
        f"policy {visible(norm.policy)}, optimizer step {norm.optimizer_step}: gradient norm "
        f"{size}{by_agent}{usual}"
    )


def _begin_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        is_text = name in ("turn", "agent", "policy")
        table.add_column(name, justify="left" if is_text else "right")
    return table


def describe_token(rank: int, token: SpikeToken) -> tuple[str, str]:
    """Return a line with the token in brackets and its numbers, and one that says where it is."""
    half = LETTERS // 2
    around = " ".join(f"{token.before[-half:]}[{token.text}]{token.after[:half]}".split())
    numbers = (
        f"p {fmt(math.exp(token.logprob))}, advantage {fmt_signed(token.advantage)}, "
        f"ratio {fmt(token.ratio)}, estimate {fmt(token.estimate)}"
    )
    measured = "" if token.measured is None else f", measured {fmt(token.measured)}"
    return (
        f"{rank:3}. {visible(around)}  {numbers}{measured}",
        f"     {visible(token.agent)}, {visible(token.turn)}, token {token.token}",
    )
