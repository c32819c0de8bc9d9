"""Writes tables of what runs came to beside what the paper has, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from rolecall_lab.reproduce.drmas_published import GAINS, MIXED
from rolecall_lab.reproduce.found import RunFound, largest_over_median, spikes
from rolecall_lab.reproduce.settings import ALGORITHMS, WEIGHTS, Setting
from rolecall_lab.seeds import Mean, over_seeds

Found = Mapping[str, Sequence[RunFound]]  # by the name of a setting, its runs
HEADS = {
    ("table", 1): "Table 1: maths",
    ("table", 2): "Table 2: search",
    ("table", 3): "Table 3: whose mean and spread, in search",
    ("figure", 1): "Gradient norms in maths",
    ("figure", 3): "Gradient norms in search",
    ("figure", 4): "One model for all agents, and two",
}
MISSING = "-"


def report(kind: str, number: int, settings: Sequence[Setting], found: Found) -> str:
    """A table of the paper, or the numbers of a figure, of the runs that are there."""
    if kind == "figure":
        body = _mixed if number == 4 else _norms
    else:
        body = _ablation if number == 3 else _teams
    return f"## {HEADS[kind, number]}\n\n{body(settings, found)}"


def _teams(settings: Sequence[Setting], found: Found) -> str:
    lines = _rows(
        ["model", "weights", "algorithm", "avg@16", "pass@16", "avg@16 published", "pass@16"],
        (
            [
                setting.base,
                WEIGHTS[setting.weights] if setting.algorithm != "untrained" else MISSING,
                ALGORITHMS[setting.algorithm],
                *_scores(found.get(setting.name, ())),
                *_published(setting),
            ]
            for setting in settings
        ),
    )
    parts = [lines, _gain(settings, found)]
    if any(_benchmarks(setting, found) for setting in settings):
        parts.append(_by_benchmark(settings, found))
    return "\n\n".join(filter(None, parts))


def _gain(settings: Sequence[Setting], found: Found) -> str:
    """Describe the gain of Dr. MAS over GRPO.

    It is the ratio of their averages over teams, as the paper counts it.
    """
    pairs = [
        (found.get(grpo.name, ()), found.get(drmas.name, ()))
        for grpo in settings
        for drmas in settings
        if grpo.algorithm == "grpo" and drmas.algorithm == "drmas"
        if (grpo.base, grpo.weights) == (drmas.base, drmas.weights)
    ]
    seeds = [{run.seed for run in side} for pair in pairs for side in pair]
    both = sorted(set.intersection(*seeds)) if seeds else []
    if not both:
        return ""
    task = settings[0].task
    gains = []
    for name, of, published in (
        ("avg@16", lambda run: run.average, GAINS[task][0]),
        ("pass@16", lambda run: run.passed, GAINS[task][1]),
    ):
        ratios = [_ratio(pairs, seed, of) for seed in both]
        each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        gains.append(f"{name} {fmean(ratios):.3f} (by seed {each}; published {published:.3f})")
    gain = GAINS[task][0]
    return (
        "Averages of the teams under Dr. MAS over those under GRPO: "
        + "; ".join(gains)
        + f". The gains are relative: {gain} is {100 * (gain - 1):.1f} % of what GRPO has, not"
        f" {100 * (gain - 1):.1f} points."
    )


def _ratio(
    pairs: Sequence[tuple[Sequence[RunFound], Sequence[RunFound]]],
    seed: int,
    of: Callable[[RunFound], float],
) -> float:
    """Return the ratio of the sums over teams of one seed; infinite where GRPO has nothing."""
    grpo, drmas = (
        sum(of(run) for pair in pairs for run in pair[side] if run.seed == seed) for side in (0, 1)
    )
    return drmas / grpo if grpo else float("inf")


def _by_benchmark(settings: Sequence[Setting], found: Found) -> str:
    rows = [
        [
            setting.base, WEIGHTS[setting.weights], ALGORITHMS[setting.algorithm], source,
            *_means([run.by_source[source] for run in found[setting.name]]),
            *_cells(setting.published.by_source[source] if setting.published else None),
        ]
        for setting in settings
        for source in _benchmarks(setting, found)
    ]  # fmt: skip
    head = ["model", "weights", "algorithm", "benchmark", "avg@16", "pass@16", "avg@16 published"]
    return _rows([*head, "pass@16"], rows)


def _benchmarks(setting: Setting, found: Found) -> list[str]:
    """Return the benchmarks of the paper that all runs have."""
    runs = found.get(setting.name, ())
    named = setting.published.by_source if setting.published else {}
    return [source for source in named if runs and all(source in run.by_source for run in runs)]


def _ablation(settings: Sequence[Setting], found: Found) -> str:
    whose = {"grpo": ("task", "task"), "agent_mean": ("agent", "task"),
             "agent_std": ("task", "agent"), "drmas": ("agent", "agent")}  # fmt: skip
    return _rows(
        ["mean of", "spread of", "avg@16", "pass@16", "avg@16 published", "pass@16"],
        (
            [
                *whose[setting.algorithm],
                *_scores(found.get(setting.name, ())),
                *_published(setting),
            ]
            for setting in settings
        ),
    )


def _norms(settings: Sequence[Setting], found: Found) -> str:
    rows = []
    for setting in settings:
        runs = found.get(setting.name, ())
        for agent in dict.fromkeys(agent for run in runs for agent in run.norms):
            norms = [run.norms[agent] for run in runs]
            steps = sum(map(len, norms))
            largest = ", ".join(f"{largest_over_median(of):.1f}" for of in norms)
            rows.append(
                [ALGORITHMS[setting.algorithm], agent, f"{sum(map(spikes, norms))} of {steps}",
                 largest, *_scores(runs)]
            )  # fmt: skip
    head = ["algorithm", "agent", "spikes", "largest norm over median, by seed"]
    return (
        _rows([*head, "avg@16", "pass@16"], rows)
        + "\n\nA spike is a step whose norm, before clipping, is above three times the median"
        " of its run."
    )


def _mixed(settings: Sequence[Setting], found: Found) -> str:
    rows, notes = [], []
    for setting in settings:
        runs = found.get(setting.name, ())
        bases = dict.fromkeys(policy["base"] for policy in setting.config["policies"].values())
        dollars = [run.usd for run in runs if run.usd is not None]
        rows.append(
            [
                " and ".join(bases),
                *_scores(runs),
                f"{fmean(sum(run.tokens.values()) for run in runs):.0f}" if runs else MISSING,
                f"{fmean(run.seconds for run in runs):.3f}" if runs else MISSING,
                f"{fmean(dollars):.4f}" if dollars else MISSING,
            ]
        )
    one, two = (found.get(setting.name, ()) for setting in settings)
    if one and two:
        notes.append(
            f"Saved by two models: latency {_saved(one, two, lambda run: run.seconds)} (published "
            f"{100 * MIXED['latency']:.1f} %), cost {_saved(one, two, lambda run: run.usd or 0.0)} "
            f"(published {100 * MIXED['cost']:.1f} %)."
        )
    head = ["models", "avg@16", "pass@16", "tokens an attempt", "seconds an attempt", "dollars"]
    return "\n\n".join([_rows(head, rows), *notes])


def _saved(
    one: Sequence[RunFound], two: Sequence[RunFound], of: Callable[[RunFound], float]
) -> str:
    before, after = (fmean(map(of, runs)) for runs in (one, two))
    return f"{100 * (1 - after / before):.1f} %" if before else MISSING


def _scores(runs: Sequence[RunFound]) -> list[str]:
    """avg@16 and pass@16; of one seed the average with its margin over tasks."""
    if len(runs) == 1:
        return [str(Mean(runs[0].average, runs[0].margin)), f"{runs[0].passed:.1f}"]
    return _means([(run.average, run.passed) for run in runs])


def _means(pairs: Sequence[tuple[float, float]]) -> list[str]:
    return [str(over_seeds(of)) for of in zip(*pairs, strict=True)] if pairs else [MISSING] * 2


def _published(setting: Setting) -> list[str]:
    scores = setting.published
    return _cells((scores.average, scores.passed) if scores else None)


def _cells(pair: tuple[float, float] | None) -> list[str]:
    return [f"{value:.1f}" for value in pair] if pair else [MISSING] * 2


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)
