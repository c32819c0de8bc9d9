"""Says in words and numbers what each term of a turn's credit did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch

from rolecall.core.credit import (
    STD_FLOOR,
    Amounts,
    Best,
    Compared,
    CreditTerm,
    Discounted,
    Exponential,
    Imitated,
    LeftOut,
    Preferred,
    Replayed,
    StepAdvantage,
    TokenAdvantage,
    Whitened,
)

SAMPLES = {
    "turn": "turns",
    "episode_agent": "attempts",
    "call": "calls",
    "candidate": "candidates",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One term of a turn's credit, as a sentence and as a formula with its numbers."""

    sentence: str
    formula: str = ""


@singledispatch
def describe(term: CreditTerm) -> Reason:
    """Return what the term did to the turn's advantages."""
    raise NotImplementedError(type(term))


@describe.register
def _(term: Compared) -> Reason:
    amounts = join_amounts(term.made_of, term.score)
    if term.mean is None:
        return Reason(f"{amounts}; no other attempt says what to expect: +0", "")
    if term.baseline == "moving_average":
        seat = f"seat {term.key['seat']} of {term.key['source'] or 'this game'}"
        against = f"{seat} has earned {fmt(term.mean)} so far, as a moving average"
    elif term.baseline == "leave_one_out":
        against = f"{_group(term)} without this attempt have mean {fmt(term.mean)}"
    elif term.n == 0:
        against = f"it is measured from {fmt(term.mean)}"
    else:
        against = f"{_group(term)} have mean {fmt(term.mean)}"
    formula = f"{fmt(term.score)} - {fmt(term.mean)}"
    if term.std is not None:
        if not term.std_key and term.std_n is None:
            against += f" and spread {fmt(term.std)}"
        else:
            against += f"; {_spread_group(term)} have spread {fmt(term.std)}"
        formula = f"({formula}) / ({fmt(term.std)} + {STD_FLOOR:g})"
    if term.own is not None and term.own_mean is not None:
        against += f"; its own reward {fmt(term.own)} is measured from {fmt(term.own_mean)}"
        formula += f" + {fmt(term.own)} - {fmt(term.own_mean)}"
    if term.factor != 1.0:
        against += f"; times {fmt(term.factor)}"
        formula = f"({formula}) * {fmt(term.factor)}"
    if term.n == 1 and term.baseline == "mean":
        against += ", being alone"
    elif term.std == 0.0:
        against += ", all being equal"
    return Reason(
        f"{amounts}; {against}: {fmt_signed(term.gain)}",
        f"{formula} = {fmt_signed(term.gain)}",
    )


@describe.register
def _(term: Whitened) -> Reason:
    if not term.std:
        return Reason(f"{term.of} all have the same advantage: +0")
    centred = f"mean {fmt(term.mean)} and " if term.mean else ""
    return Reason(
        f"{term.of} ({term.n:,}) have {centred}spread {fmt(term.std)}, and are divided by it",
        f"(A - {fmt(term.mean)}) / ({fmt(term.std)} + {term.floor:g})",
    )


@describe.register
def _(term: Discounted) -> Reason:
    amounts = join_amounts(term.made_of, term.score)
    return Reason(
        f"{amounts}, earned with the last token; each token before it has it times "
        f"{fmt(term.gamma)}{_kl(term.token_rewards)}"
    )


@describe.register
def _(term: TokenAdvantage) -> Reason:
    amounts = join_amounts(term.made_of, term.score)
    after = (
        f"the value after it is {fmt(term.next_value)} and the advantage there "
        f"{fmt_signed(term.next_advantage)}"
        if term.next_value or term.next_advantage
        else "nothing comes after it"
    )
    return Reason(
        f"{amounts}, earned with the last token; {after}; the agent's value head says what each "
        f"token could expect{_kl(term.token_rewards)}",
        f"A_t = r_t + g V_t+1 - V_t + g {fmt(term.lam)} A_t+1, g {fmt(term.gamma)} "
        f"and {fmt(term.gamma_turn)} after the last token",
    )


@describe.register
def _(term: StepAdvantage) -> Reason:
    amounts = join_amounts(term.made_of, term.reward)
    where = f"joint step {term.step + 1} of {term.num_steps}"
    delta = f"{fmt(term.reward)} + {fmt(term.discount)} * {fmt(term.next_value)}"
    after = f"{fmt(term.discount)} * {fmt(term.lam)} * {fmt(term.next_advantage)}"
    return Reason(
        f"{amounts} in {where}; the critic expected {fmt(term.value)} before it and "
        f"{fmt(term.next_value)} after it: {fmt_signed(term.advantage)}",
        f"{delta} - {fmt(term.value)} + {after} = {fmt_signed(term.advantage)}",
    )


@describe.register
def _(term: Replayed) -> Reason:
    gain = term.earned - term.replayed + term.own
    own = f", and its own reward is {fmt(term.own)}" if term.own else ""
    other = "a greedy play of its task" if term.by == "greedy" else "its replays without this turn"
    return Reason(
        f"the episode earned {fmt(term.earned)}, and {other} "
        f"{fmt(term.replayed)}{own}: {fmt_signed(gain)}",
        f"{fmt(term.earned)} - {fmt(term.replayed)} + {fmt(term.own)} = {fmt_signed(gain)}",
    )


@describe.register
def _(term: Preferred) -> Reason:
    is_better = term.score > term.other_score
    relation, sign = ("more", "+1") if is_better else ("less", "-1")
    return Reason(
        f"it scored {fmt(term.score)}, which is {relation} than the {fmt(term.other_score)} "
        f"of {term.other}, its partner in a pair: {sign}"
    )


@describe.register
def _(term: Imitated) -> Reason:
    amounts = join_amounts(term.made_of, term.score)
    return Reason(f"{amounts}, at least the threshold {fmt(term.threshold)}, so it is imitated: +1")


@describe.register
def _(term: Best) -> Reason:
    mine, most = term.values[term.number], max(term.values)
    if len(term.values) == 1:
        return Reason("the call has a single candidate: +0")
    if term.number == term.values.index(most):
        verdict = f"most of the {len(term.values)} candidates of its call: +1"
    else:
        verdict = f"less than the {fmt(most)} of the best candidate of its call: +0"
    return Reason(f"the critic values it at {fmt(mine)}, {verdict}")


@describe.register
def _(term: Exponential) -> Reason:
    return Reason(
        f"the critic says that it added {fmt_signed(term.estimate)}",
        f"min(exp({fmt(term.estimate)} / {fmt(term.beta)}), {fmt(term.most)})",
    )


@describe.register
def _(term: LeftOut) -> Reason:
    return Reason(f"{term.reason}: {'not trained on' if term.is_dropped else '+0'}")


def join_amounts(amounts: Amounts, score: float) -> str:
    """Return `outcome 1 and own -0.1 make 0.9`; amounts of 0 are left out if another one is not."""
    if not amounts:
        return f"score {fmt(score)}"
    shown = {name: value for name, value in amounts.items() if value}
    if not shown:
        return f"{next(iter(amounts))} 0"
    words = [f"{name} {fmt(value)}" for name, value in shown.items()]
    total = sum(amounts.values())
    result = f" make {fmt(total)}" if len(words) > 1 else ""
    limited = f", limited to {fmt(score)}" if score != total else ""
    return " and ".join(words) + result + limited


def fmt(value: float) -> str:
    """Return `0.709`, `12.3`, `1e-05`: three significant digits, and four of larger ones."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.4g}"


def fmt_signed(value: float) -> str:
    """Return `+0.709`."""
    return f"{value:+.3g}"


def _kl(token_rewards: tuple[float, ...] | None) -> str:
    if token_rewards is None:
        return ""
    return f"; the KL to the reference adds {fmt_signed(sum(token_rewards))} over its tokens"


def _group(term: Compared) -> str:
    return _name_group(term.n, term.sample, term.key)


def _spread_group(term: Compared) -> str:
    return _name_group(term.std_n or term.n, term.sample, term.std_key or {})


def _name_group(size: int, sample: str, key: Mapping[str, str]) -> str:
    """Return `the solver's 8 turns of this task`."""
    unit = SAMPLES[sample]
    unit = unit.removesuffix("s") if size == 1 else unit
    whose = f"{key['agent']}'s {size}" if "agent" in key else f"the {size}"
    if "prompt" in key:
        return f"{whose} {unit} for this prompt"
    if "state" in key:
        return f"{whose} {unit} in this state"
    return f"{whose} {unit} of this {'task' if 'task' in key else 'step'}"
