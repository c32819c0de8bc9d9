"""Links what the metrics of a run show to be wrong to the pages that show it."""

from __future__ import annotations

from collections.abc import Callable

from rolecall.monitor.advice import Problem, check_step, find_problems
from rolecall.watch.links import link_view
from rolecall.watch.models import Advice, Missing
from rolecall.watch.runs import WatchedRun

SAYS = {"find": "the turns", "step": "the step", "spikes": "where it came from"}


def advise_run(run: WatchedRun) -> tuple[list[Advice], list[Missing]]:
    """Return what the newest step and the alarms of a run show, the worst first."""
    records = run.series.refresh().records()
    policies = run.config.trained_policies()
    return _advise(run, lambda: find_problems(records, run.config.keys, policies))


def advise_step(run: WatchedRun, step: int) -> tuple[list[Advice], list[Missing]]:
    """Return what one step shows, the worst first."""
    records = [one for one in run.series.refresh().records() if one["step"] <= step]
    if not records or records[-1]["step"] != step:
        return [], []
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
