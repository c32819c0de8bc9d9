"""Reads the gradient norms of a step: of each optimizer step where they are recorded."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from rolecall.core.json_types import Record
from rolecall.monitor.advice import WINDOW
from rolecall.storage import update_io
from rolecall.watch.clean_json import clean, finite, list_objects
from rolecall.watch.models import Missing, Norm, Number
from rolecall.watch.runs import WatchedRun
from rolecall.watch.series import Metrics
from rolecall.watch.tables import first_words


def read_norms(
    run: WatchedRun, step: int, metrics: dict[str, Number]
) -> tuple[list[Norm], list[Missing]]:
    """Return the norms of a step's optimizer steps.

    Where no updates are recorded they are the means of the step's metrics, one for a policy.
    """
    records, missing = read_optimizer_steps(run.update_file(step))
    if not missing:
        return [_norm(record) for record in records], []
    return _mean_norms(run, metrics), missing


def read_optimizer_steps(file: Path) -> tuple[list[Record], list[Missing]]:
    """Return what the footer of a file of updates says of its optimizer steps."""
    import pyarrow as pa

    what = f"updates of step {int(file.stem.removeprefix('step-'))}"
    try:
        records: Any = clean(update_io.read_optimizer_steps(file))
    except FileNotFoundError:
        why = "no update is recorded: an earlier version trained it, or it goes on just now"
        return [], [Missing(what=what, why=why)]
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        return [], [Missing(what=what, why=f"it cannot be read: {first_words(error)}")]
    if not isinstance(records, list):
        return [], [Missing(what=what, why="its footer has no optimizer steps")]
    return list_objects(records), []


def compute_usual_norms(metrics: Metrics, step: int) -> dict[str, Number]:
    """Return {policy: median gradient norm of the steps before}."""
    prefix, suffix = "policy/", "/grad_norm"
    usual: dict[str, Number] = {}
    for name in sorted(metrics.columns):
        if name.startswith(prefix) and name.endswith(suffix):
            pairs = zip(metrics.steps, metrics.values(name), strict=True)
            before = [value for number, value in pairs if number < step and value is not None]
            policy = name.removeprefix(prefix).removesuffix(suffix)
            usual[policy] = median(before[-WINDOW:]) if before else None
    return usual


def _norm(record: Record) -> Norm:
    agents: Any = record.get("agent_grad_norms")
    return Norm(
        policy=str(record.get("policy", "")),
        optimizer_step=int(finite(record.get("optimizer_step")) or 0),
        grad_norm=finite(record.get("grad_norm")),
        agents={str(agent): finite(norm) for agent, norm in agents.items()}
        if isinstance(agents, dict)
        else {},
        lr=finite(record.get("lr")),
        kl=finite(record.get("kl")),
        tokens=int(finite(record.get("tokens")) or 0),
        skipped=str(record.get("skipped") or ""),
    )


def _mean_norms(run: WatchedRun, metrics: dict[str, Number]) -> list[Norm]:
    norms = []
    policies = run.config.trained_policies()
    for name, value in sorted(metrics.items()):
        area, _, rest = name.partition("/")
        policy, _, kind = rest.rpartition("/")
        if area == "policy" and kind == "grad_norm":
            own = {agent for agent, other in policies.items() if other == policy}
            tokens = [metrics.get(f"agent/{agent}/trained_tokens") or 0.0 for agent in own]
            norms.append(
                Norm(
                    policy=policy,
                    optimizer_step=0,
                    grad_norm=value,
                    agents={a: metrics.get(f"agent/{a}/grad_norm") for a in sorted(own)},
                    lr=metrics.get(f"policy/{policy}/lr"),
                    kl=metrics.get(f"policy/{policy}/moved_kl"),
                    tokens=int(sum(tokens)),
                    skipped="",
                )
            )
    return norms
