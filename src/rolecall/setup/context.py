"""Makes what episodes are played with, from a plan and the engines of its policies."""

from __future__ import annotations

from rolecall.agents.agent import Parser, Policy
from rolecall.agents.chat_template import Tokenizer
from rolecall.agents.parsers import parse_boxed
from rolecall.core.interfaces.engine import Engine
from rolecall.core.interfaces.environment import Environment
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.agents import make_agents
from rolecall.setup.chat_models import connect
from rolecall.setup.open_environment import Surroundings
from rolecall.setup.plan import Plan


def make_context(
    plan: Plan,
    opened: Surroundings,
    tokenizers: dict[str, Tokenizer],
    engines: dict[str, Engine],
    barrier: IdleBarrier,
) -> RolloutContext:
    """All but `opened` by policy."""
    config = plan.config
    policies = {
        name: Policy(name, tokenizers.get(name), engines[name], template=policy.template)
        for name, policy in config.policies.items()
    }
    connect(opened.chat_models, policies)
    return RolloutContext(
        agents=make_agents(
            config, policies, parsers=_fit_parsers(plan, opened.environment), tools=opened.tools
        ),
        workflow=plan.workflow,
        options=plan.options,
        environment=opened.environment,
        rewards=opened.rewards,
        seed=config.trainer.seed,
        timeout_s=config.rollout.timeout_s,
        retries=config.rollout.retries,
        concurrency=config.rollout.concurrency,
        barrier=barrier,
        counted_agent=config.evaluation.agent,
    )


def _fit_parsers(plan: Plan, environment: Environment) -> dict[str, Parser | None]:
    """Return the parsers, those of boxed answers replaced by the environment's own reading.

    A parser that the config names stays.
    """
    own: Parser | None = getattr(environment, "parse_answer", None)
    return {
        name: own
        if own is not None and parser is parse_boxed and plan.config.team[name].parser is None
        else parser
        for name, parser in plan.parsers.items()
    }
