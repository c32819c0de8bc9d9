"""Says in sentences what the metrics of a run show to be wrong, and which key to change.

Limits are those of warnings elsewhere where there are such; the others are noted beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from rolecall.core.json_types import Record
from rolecall.learners.mismatch import LARGEST_MEAN, LARGEST_SHARE
from rolecall.monitor.alarms import find_alarms
from rolecall.monitor.diagnosis import KEPT, choose_max_tokens

SOLVED = 0.95  # mean score from which tasks are too easy; 1 less it: too hard
INVALID = 0.1  # share of unreadable turns that costs much of a step
SILENT = 0.9  # share of an agent's turns without signal
TOOL_FAILURES = 0.1  # share of the calls
SPIKE = 5.0  # times the median of the steps before
WINDOW = 20  # steps of that median

Severity = Literal["note", "warning", "error"]
View = Literal["find", "step", "spikes"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Says what is wrong in a step, with the key to change and where it shows."""

    kind: str
    severity: Severity
    step: int
    text: str
    key: str = ""  # what to write instead; "": there is no single key
    view: View = "step"
    query: str = ""  # of the view `find`: the turns that show it


def find_problems(
    records: Sequence[Record], config: Record, policies: Mapping[str, str]
) -> list[Problem]:
    """Return what the newest step and the alarms of a run show, the worst first.

    `records` are those of `metrics.jsonl`; `config` are the keys of the run, with their defaults;
    `policies` has those of the trained agents, by agent.
    """
    steps = [record for record in records if record.get("kind", "step") == "step"]
    if not steps:
        return []
    alarms = [
        Problem(alarm.kind, "warning", alarm.step, alarm.text, view="find",
                query=f"agent:{alarm.agent} step:{alarm.step}")
        for alarm in find_alarms(steps, policies)
    ]  # fmt: skip
    return sort_by_severity([*check_step(steps, config, policies), *alarms])


def check_step(
    steps: Sequence[Record], config: Record, policies: Mapping[str, str]
) -> list[Problem]:
    """Return what the last of these steps shows; those before it say what is usual."""
    record, before = steps[-1], steps[:-1]
    problems = [
        *_check_failures(record, config),
        *_check_staleness(record, config),
        *_check_tools(record),
    ]
    problems += _check_gradients(record, before)
    for agent, policy in policies.items():
        own = _area(record, f"agent/{agent}/")
        if not own:
            continue
        problems += _check_lengths(agent, own, config, record["step"])
        problems += _check_form(agent, own, config, record["step"])
        problems += _check_signal(agent, own, config, record)
        problems += _check_mismatch(agent, policy, own, config, record["step"])
    return sort_by_severity(problems)


def sort_by_severity(problems: Iterable[Problem]) -> list[Problem]:
    order = ("error", "warning", "note")
    return sorted(problems, key=lambda problem: (order.index(problem.severity), -problem.step))


def _read(config: Record, default: Any, *path: str) -> Any:
    """Return a key of a config, which may be of another version and lack it."""
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return default if value is None else value


def _area(record: Record, prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): value
        for name, value in record.items()
        if name.startswith(prefix) and isinstance(value, int | float)
    }


def _check_failures(record: Record, config: Record) -> list[Problem]:
    failed, step = record.get("rollout/failures") or 0, record["step"]
    if not failed:
        return []
    kinds = _area(record, "failures/")
    names = ", ".join(f"{kind} {count:g}" for kind, count in sorted(kinds.items()))
    first = f"; the first: {record['error']}" if record.get("error") else ""
    severity: Severity = "warning" if record.get("rollout/episodes") else "error"
    longer = f"rollout.timeout_s={2 * _read(config, 600.0, 'rollout', 'timeout_s'):g}"
    key = longer if "TimeoutError" in kinds else ""
    text = f"{failed:g} attempts failed ({names}){first}"
    return [Problem("failed", severity, step, text, key, "find", f"error:yes step:{step}")]


def _check_staleness(record: Record, config: Record) -> list[Problem]:
    stale, step = record.get("rollout/stale_groups") or 0, record["step"]
    if not stale:
        return []
    allowed = _read(config, 0, "trainer", "max_staleness")
    text = (
        f"{stale:g} groups of attempts were sampled by weights more than {allowed} updates old "
        "and were not trained on: sampling is slower than updates"
    )
    return [Problem("stale", "warning", step, text, f"trainer.max_staleness={allowed + 1}")]


def _check_tools(record: Record) -> list[Problem]:
    counts, step = _area(record, "rollout/tool_"), record["step"]
    failed = {n: c for n, c in counts.items() if n not in ("calls", "limit", "results_cut") and c}
    calls = sum(failed.values()) + counts.get("calls", 0.0)
    if not calls or sum(failed.values()) < TOOL_FAILURES * calls:
        return []
    names = ", ".join(f"{name} {count:g}" for name, count in sorted(failed.items()))
    text = f"{sum(failed.values()) / calls:.0%} of {calls:g} calls of tools failed ({names})"
    return [Problem("tools", "warning", step, text)]


def _check_gradients(record: Record, before: Sequence[Record]) -> list[Problem]:
    """Report steps of a policy that were left out, and gradients far above the usual."""
    problems, step = [], record["step"]
    norms = [name for name in record if name.startswith("policy/") and name.endswith("/grad_norm")]
    for name in norms:
        policy = name.split("/")[1]
        if record.get(f"policy/{policy}/skipped"):
            text = f"the update of policy {policy} was left out: a turn had no finite gradient"
            problems.append(Problem("skipped", "error", step, text, view="spikes"))
            continue
        usual = [past[name] for past in before[-WINDOW:] if name in past]
        if len(usual) >= 3 and record[name] > SPIKE * median(usual) > 0:
            text = (
                f"the gradient norm of policy {policy} is {record[name]:.3g}, "
                f"{record[name] / median(usual):.0f} times the median of the steps before"
            )
            problems.append(Problem("spike", "warning", step, text, view="spikes"))
    if not norms and not record.get("rollout/episodes", 1):
        return problems
    if not norms:
        text = "no policy was updated: no turn was worth more or less than those of its group"
        problems.append(Problem("no signal", "error", step, text))
    return problems


def _check_lengths(
    agent: str, own: Mapping[str, float], config: Record, step: int
) -> list[Problem]:
    cut = own.get("truncated", 0.0)
    if cut <= 1 - KEPT:
        return []
    limit = _read(config, 0, "team", agent, "sampling", "max_tokens")
    length = own.get("tokens", 0.0) / own["turns"] if own.get("turns") else float(limit)
    enough = 4 * limit
    if cut < 1 and length:
        enough = choose_max_tokens(limit, length / (1 - cut))
    text = f"{cut:.0%} of {agent}'s turns are cut by max_tokens ({limit})"
    key = f"team.{agent}.sampling.max_tokens={enough}"
    severity: Severity = "warning" if cut > 0.25 else "note"
    query = f"agent:{agent} finish:length step:{step}"
    return [Problem("truncated", severity, step, text, key, "find", query)]


def _check_form(agent: str, own: Mapping[str, float], config: Record, step: int) -> list[Problem]:
    unread = own.get("invalid", 0.0) - own.get("truncated", 0.0)  # most cut turns are unreadable
    if unread <= INVALID:
        return []
    text = f"{unread:.0%} of {agent}'s turns ended and have not the form that is read"
    key = "" if _read(config, None, "rewards", "format") else "rewards.format=0.2"
    query = f"agent:{agent} valid:no step:{step}"
    return [Problem("invalid", "warning", step, text, key, "find", query)]


def _check_signal(
    agent: str, own: Mapping[str, float], config: Record, record: Record
) -> list[Problem]:
    silent, step = own.get("zero_signal", 0.0), record["step"]
    if silent <= SILENT:
        return []
    text = (
        f"{silent:.0%} of {agent}'s turns have no signal: they are worth as much as those that "
        "they are compared with"
    )
    score = record.get("score")
    key = f"rollout.group_size={2 * _read(config, 8, 'rollout', 'group_size')}"
    if score is not None and score >= SOLVED:
        text, key = f"{text}. {score:.0%} of the attempts are right: use harder tasks", ""
    elif score is not None and score <= 1 - SOLVED:
        text = f"{text}. {score:.0%} of the attempts are right: use easier tasks first"
        key = "trainer.warm_start=10"
    severity: Severity = "warning" if silent >= 1 else "note"
    query = f"agent:{agent} step:{step}"
    return [Problem("no signal", severity, step, text, key, "find", query)]


def _check_mismatch(
    agent: str, policy: str, own: Mapping[str, float], config: Record, step: int
) -> list[Problem]:
    mean, outside = own.get("mismatch_mean", 0.0), own.get("mismatch_outside", 0.0)
    if mean <= LARGEST_MEAN and outside <= LARGEST_SHARE:
        return []
    sizes = f"{mean:.3g} nats a token in the mean, and {outside:.1%} of the tokens differ twofold"
    staleness = _read(config, 0, "trainer", "max_staleness")
    if staleness or _read(config, 0, "rollout", "carry"):
        text = f"{agent}'s log-probs have drifted since they were sampled: {sizes}"
        key = f"trainer.max_staleness={max(0, staleness - 1)}"
        return [Problem("mismatch", "note", step, text, key, "spikes")]
    text = f"sampler and learner of policy {policy} disagree on {agent}'s tokens: {sizes}"
    return [Problem("mismatch", "warning", step, text, "learner.dtype=float32", "spikes")]
