"""A run's metrics records in, summary.json out: what a person quotes."""

from __future__ import annotations

from statistics import median
from typing import Any


def summarise(records: list[dict[str, Any]], *, seed: int) -> dict[str, Any]:
    """steps, wall_s, seed, before and after (fractions), and per agent reward and gradient norms.

    `reward` is the mean of the last step; an agent that was never updated has no gradient norm.
    """
    steps = [r for r in records if r["kind"] == "step"]
    evaluations = {r["when"]: r for r in records if r["kind"] == "evaluation"}
    found: dict[str, Any] = {
        "steps": len(steps),
        "wall_s": max((r.get("time/run_s", 0.0) for r in records), default=0.0),
        "seed": seed,
    }
    for when in ("before", "after"):
        if when in evaluations:
            hidden = ("kind", "step", "when", "time/run_s")
            found[when] = {k: v for k, v in evaluations[when].items() if k not in hidden}
    agents = sorted({key.split("/")[1] for r in steps for key in r if key.startswith("agent/")})
    found["agents"] = {agent: _of_agent(steps, agent) for agent in agents}
    return found


def _of_agent(steps: list[dict[str, Any]], agent: str) -> dict[str, float]:
    rewards = [r[key] for r in steps if (key := f"agent/{agent}/reward") in r]
    norms = [r[key] for r in steps if (key := f"agent/{agent}/grad_norm") in r]
    found = {"reward": rewards[-1]} if rewards else {}
    if norms:
        found |= {"grad_norm_max": max(norms), "grad_norm_median": median(norms)}
    return found
