"""Says which settings hold for each agent of a team."""

from __future__ import annotations

from rich.table import Table

from rolecall.algorithms.base import Algorithm
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter, Named
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.json_types import Record
from rolecall.setup.plan import Plan

ALWAYS = ("policy", "trained", "algorithm", "lr")
SETTINGS = (
    "mean", "std", "count", "epochs", "minibatches", "target_kl", "clip_low", "clip_high", "agg",
    "kl", "entropy",
)  # fmt: skip


def describe_agents(plan: Plan) -> dict[str, Record]:
    """Return the effective settings of each agent."""
    return {name: _agent(plan, name) for name in plan.config.team}


def find_differences(plan: Plan) -> dict[str, Record]:
    """Return of each agent what differs between agents or from defaults, and ALWAYS."""
    agents = describe_agents(plan)
    defaults = {name: _defaults(plan, name) for name in agents}
    rows = dict.fromkeys(key for values in agents.values() for key in values)
    shown = [
        row
        for row in rows
        if row in ALWAYS
        or (row != "role" and len({repr(v.get(row)) for v in agents.values()}) > 1)
        or any(values.get(row) != defaults[name].get(row) for name, values in agents.items())
    ]
    return {
        name: {row: values[row] for row in shown if row in values}
        for name, values in agents.items()
    }


def agents_table(agents: dict[str, Record]) -> Table:
    """Return a table: a column for each agent, a row for each setting, with its values."""
    table = Table("", *agents, title="Agents", title_justify="left")
    for row in dict.fromkeys(key for values in agents.values() for key in values):
        table.add_row(row, *(_cell(values.get(row, "")) for values in agents.values()))
    return table


def _agent(plan: Plan, name: str) -> Record:
    agent = plan.config.team[name]
    sampling = agent.sampling
    row: Record = {
        "role": agent.role or name,
        "policy": agent.policy,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "invalid_penalty": agent.invalid_penalty,
        "tools": [named.name for named in agent.tools.use] if agent.tools else [],
    }
    if name not in plan.algorithms:
        return row | {"trained": "no"}
    algorithm, policy = plan.algorithms[name], plan.config.policies[agent.policy]
    assert policy.optimizer is not None, "the config fills it in"
    named = agent.algorithm or plan.config.algorithm
    settings = {
        key: getattr(algorithm, key) for key in SETTINGS if key in type(algorithm).model_fields
    }
    return row | {
        "trained": _what_is_trained(policy.adapter),
        "algorithm": _called(named, algorithm),
        **settings,
        "critic": ", ".join(algorithm.critics) or "none",
        "reference": policy.reference or "none",
        "lr": policy.optimizer.lr,
        "schedule": policy.optimizer.schedule,
        "warmup_steps": policy.optimizer.warmup_steps,
        "gradient_clip": policy.optimizer.clip,
    }


def _what_is_trained(adapter: Adapter | None) -> str:
    """Return what is trained, e.g. `adapter, rank 8, alpha 16`."""
    if adapter is None:
        return "all weights"
    return f"adapter, rank {adapter.rank}, alpha {adapter.alpha:g}"


def _defaults(plan: Plan, name: str) -> Record:
    """Return what the rows of an agent are where nobody says otherwise."""
    sampling, optimizer = Sampling(), Optimizer()
    defaults: Record = {
        "role": name,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "invalid_penalty": 0.0,
        "tools": [],
        "critic": "none",
        "reference": "none",
        "schedule": optimizer.schedule,
        "warmup_steps": optimizer.warmup_steps,
        "gradient_clip": optimizer.clip,
    }
    if name in plan.algorithms:
        fields = type(plan.algorithms[name]).model_fields
        defaults |= {
            key: field.get_default(call_default_factory=True, validated_data={})
            for key in SETTINGS
            if (field := fields.get(key)) is not None
        }
    return defaults


def _called(named: Named, algorithm: Algorithm) -> str:
    """Return an algorithm's name, `ma_airl (mappo)` for one with another in it."""
    inner = named.options.get("inner") if algorithm.discriminator else None
    return named.name if inner is None else f"{named.name} ({Named.model_validate(inner).name})"


def _cell(value: object) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
