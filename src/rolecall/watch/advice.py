"""Links what the metrics of a run show to be wrong to the pages that show it."""

from __future__ import annotations

from collections.abc import Callable

from rolecall.monitor.advice import WINDOW, Problem, check_step, find_problems
from rolecall.watch.links import link_view
from rolecall.watch.models import Advice, Missing
from rolecall.watch.runs import WatchedRun

SAYS = {"find": "the turns", "step": "the step", "spikes": "where it came from"}


def advise_run(run: WatchedRun) -> tuple[list[Advice], list[Missing]]:
    """Return what the newest step and the alarms of a run show, the worst first."""
    metrics = run.series.refresh()
    records = metrics.records(range(len(metrics.steps)))
    policies = run.config.trained_policies()
    return _advise(run, lambda: find_problems(records, run.config.keys, policies))


def advise_step(run: WatchedRun, step: int) -> tuple[list[Advice], list[Missing]]:
    """Return what one step shows, the worst first."""
    metrics = run.series.refresh()
    rows = [row for row, number in enumerate(metrics.steps) if number <= step]
    if not rows or metrics.steps[rows[-1]] != step:
        return [], []
    records = metrics.records(rows[-WINDOW - 1 :])  # those before it say what is usual
    policies = run.config.trained_policies()
    return _advise(run, lambda: check_step(records, run.config.keys, policies))


def _advise(
    run: WatchedRun, check: Callable[[], list[Problem]]
) -> tuple[list[Advice], list[Missing]]:
    """Return advice, or why there is none: a config that was edited may hold anything."""
    try:
        return [_link(run, problem) for problem in check()], []
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        why = "a key of config.yaml that it needs is not of the right kind"
        return [], [Missing(what="advice", why=why)]


def _link(run: WatchedRun, problem: Problem) -> Advice:
    query = {"q": problem.query} if problem.view == "find" else {"step": problem.step}
    return Advice(
        kind=problem.kind,
        severity=problem.severity,
        text=problem.text,
        key=problem.key,
        step=problem.step,
        links=[link_view(problem.view, SAYS[problem.view], run=run.name, **query)],
    )
