"""Writes summary.json, the numbers of a run that a person quotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from types import MappingProxyType

from rolecall.core.errors import RunFailedError
from rolecall.core.json_types import Record
from rolecall.monitor.alarms import find_alarms
from rolecall.monitor.comparison import TEST, evaluations, metric_names


def summarise(
    records: list[Record], *, seed: int, policies: Mapping[str, str] = MappingProxyType({})
) -> Record:
    """Summarise a run: steps, wall_s, seed, before and after (fractions), and numbers by agent.

    By agent there are reward and gradient norms. `updates` counts the steps in which a policy was
    updated, `lost_episodes` those that failed for good. `policies` maps the trainable agents to
    their policies: `untrained` names those that had nothing to learn from, and `alarms` says what
    went wrong with others. `reward` is the mean of the last step; an agent that was never updated
    has no gradient norm.
    """
    steps = [r for r in records if r["kind"] == "step"]
    evaluated = {r["when"]: r for r in evaluations(records)}
    summary: Record = {
        "steps": len(steps),
        "updates": sum(_was_updated(r) for r in steps),
        "episodes": sum(int(r.get("rollout/episodes", 0)) for r in steps),
        "lost_episodes": sum(int(r.get("rollout/lost_episodes", 0)) for r in steps),
        "wall_s": max((r.get("time/run_s", 0.0) for r in records), default=0.0),
        "seed": seed,
    }
    for when in ("before", "after"):
        if when in evaluated:
            summary[when] = {
                name: value
                for name, value in evaluated[when].items()
                if name not in ("kind", "step", "when") and not name.startswith("time/")
            }
    if chosen := best(records):
        summary[best_name(chosen["chosen_on"])] = chosen
    agents = sorted({key.split("/")[1] for r in steps for key in r if key.startswith("agent/")})
    if untrained := untrained_agents(records, [*policies]):
        summary["untrained"] = untrained
    if alarms := find_alarms(records, policies):
        summary["alarms"] = [asdict(alarm) for alarm in alarms]
    if shares := shares_by_policy(records):
        summary["policies"] = shares
    summary["agents"] = {agent: _of_agent(steps, agent) for agent in agents}
    return summary


def untrained_agents(records: list[Record], trainable: Sequence[str]) -> list[str]:
    """Return the agents that never spoke, or of whose turns none had a signal in any step."""
    steps = [record for record in records if record["kind"] == "step"]
    untrained = []
    for agent in trainable if steps else ():
        spoke = any(f"agent/{agent}/turns" in record for record in steps)
        shares = [r[key] for r in steps if (key := f"agent/{agent}/zero_signal") in r]
        if not spoke or (shares and all(share == 1.0 for share in shares)):
            untrained.append(agent)
    return untrained


SHARES = {"truncated": "turns", "invalid": "turns", "zero_signal": "credited_turns"}


def shares_by_policy(records: list[Record]) -> dict[str, Record]:
    """Return {"solver": {"turns": 96, "truncated": .94, "invalid": 1.0, "zero_signal": 1.0}}.

    They are shares of all turns of training; None where no turn could have it.
    """
    steps = [record for record in records if record["kind"] == "step"]
    policies = sorted({k.split("/")[1] for r in steps for k in r if _is_policys(k, "turns")})
    shares: dict[str, Record] = {}
    for policy in policies:
        shares[policy] = {"turns": sum(int(r.get(f"policy/{policy}/turns", 0)) for r in steps)}
        for share, of in SHARES.items():
            pairs = [
                (r[f"policy/{policy}/{of}"], r[f"policy/{policy}/{share}"])
                for r in steps
                if f"policy/{policy}/{share}" in r
            ]
            number = sum(weight for weight, _ in pairs)
            mean = sum(weight * value for weight, value in pairs) / number if number else None
            shares[policy][share] = mean
    return shares


def shares_line(policy: str, found: Record) -> str:
    """Return `policy solver: 96 turns; cut by max_tokens 0.94, not readable 1.00, ...`."""
    names = {
        "truncated": "cut by max_tokens",
        "invalid": "not readable",
        "zero_signal": "without signal",
    }
    shares = [f"{label} {found[key]:.2f}" for key, label in names.items() if found[key] is not None]
    return f"policy {policy}: {found['turns']} turns; {', '.join(shares) or 'none sampled'}"


def best(records: list[Record]) -> Record | None:
    """Return the checkpoint `best` and its score: {"step": 4, "chosen_on": "validation", "avg@8":
    0.5}.

    None where there is none: without evaluations during the run, or where the untrained team was
    better than every later one.
    """
    validated = evaluations(records, split="validation")
    candidates = validated or evaluations(records)
    if all(record["when"] != "during" for record in candidates):
        return None
    name = metric_names(candidates[0])[0]
    first = max(candidates, key=lambda record: record[name])
    if not first["step"]:
        return None
    chosen_on = "validation" if validated else TEST
    return {"step": first["step"], "chosen_on": chosen_on, name: first[name]}


def best_name(chosen_on: str) -> str:
    """Return "best-on-test" for a choice on test tasks, because its score on them flatters it."""
    return "best-on-test" if chosen_on == TEST else "best"


def _was_updated(step: Record) -> bool:
    """Return whether a policy was updated, or a critic beside policies that stay as they are."""
    skipped = [value for name, value in step.items() if _is_policys(name, "skipped")]
    return any(not value for value in skipped) or bool(step.get("critic/updates"))


def _is_policys(name: str, metric: str) -> bool:
    return name.startswith("policy/") and name.endswith(f"/{metric}")


def _say_why_untrained(records: list[Record]) -> str:
    """Say that the coach gave no score, or else that all turns were worth the same."""
    calls, errors = (
        round(sum(record.get(f"rollout/coach_{name}", 0) for record in records))
        for name in ("calls", "errors")
    )
    if errors and errors >= calls:
        return (
            f"; the coach gave no score in {errors} of {calls} calls, and actions without one are "
            "not trained; `rolecall show RUN` prints its errors"
        )
    return "; no turn was ever worth more or less than those that it is compared with"


def check_trained(found: Record, records: list[Record]) -> None:
    """Check a run's summary; raises RunFailedError if nothing was trained or most episodes failed.

    `found` is the summary. The message is the last line that a person reads.
    """
    errors = [record["error"] for record in records if record.get("error")]
    reason = f"; the first error: {errors[0]}" if errors else ""
    lost, kept = found["lost_episodes"], found["episodes"]
    if not found["updates"]:
        why = reason or _say_why_untrained(records)
        raise RunFailedError(
            f"nothing was trained in {found['steps']} steps: {lost} of {lost + kept} episodes "
            f"failed{why}"
        )
    if lost > kept:
        raise RunFailedError(
            f"most episodes failed: {lost} of {lost + kept}, so the team was trained on those "
            f"that did not{reason}"
        )


def _of_data(steps: list[Record], agent: str) -> dict[str, float]:
    """Return what the last step on rows of a data set came to, which have no rewards."""
    return {
        name: values[-1]
        for name in ("loss", "pair_accuracy")
        if (values := [r[key] for r in steps if (key := f"agent/{agent}/{name}") in r])
    }


def _of_agent(steps: list[Record], agent: str) -> dict[str, float]:
    rewards = [r[key] for r in steps if (key := f"agent/{agent}/reward") in r]
    norms = [r[key] for r in steps if (key := f"agent/{agent}/grad_norm") in r]
    summary = {"reward": rewards[-1]} if rewards else _of_data(steps, agent)
    if norms:
        summary |= {"grad_norm_max": max(norms), "grad_norm_median": median(norms)}
    return summary
