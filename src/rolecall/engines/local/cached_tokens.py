"""Says how many tokens the rows of a run can fill an engine's cache with at once."""

from __future__ import annotations

from math import ceil

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.row_lengths import TASK_TOKENS, longest_sampled
from rolecall.config.schema import Config
from rolecall.engines.local.page_allocator import count_pages
from rolecall.models.cpu.kernels import PAGE


def cached_tokens(
    config: Config, name: str, engine: LocalEngineConfig, max_length: int | None
) -> int:
    """Return the tokens of all rows at once in the cache that this policy samples with.

    Pages are whole. In the workflows of this package, attempts at one task begin alike and share
    the pages of its prompt; what rows of other workflows share is unknown.
    """
    longest, rows = longest_sampled(config, max_length), rows_at_once(config, name, engine)
    prompt_pages = min(longest, TASK_TOKENS) // PAGE
    prompts = min(rows, _tasks_at_once(config) * _agents_sharing(config, name))
    own_pages = count_pages(longest) - prompt_pages
    return (rows * own_pages + prompts * prompt_pages) * PAGE


def rows_at_once(config: Config, name: str, engine: LocalEngineConfig) -> int:
    """Return the rows that are in flight at once in the cache that this policy samples with.

    Each agent that uses the cache has one row in each attempt that is played.
    """
    return min(engine.max_sequences, _attempts(config) * _agents_sharing(config, name))


def _agents_sharing(config: Config, name: str) -> int:
    """Return the number of agents that sample with the cache of this policy, at least 1."""
    policy = config.policies[name]
    sharing = {name}
    if policy.adapter is not None:
        sharing |= {
            other for other, p in config.policies.items() if p.adapter and p.base == policy.base
        }
    return max(1, sum(agent.policy in sharing for agent in config.team.values()))


def _tasks_at_once(config: Config) -> int:
    """Return the most tasks that attempts are at, each with prompts of its own."""
    attempts, each = _attempts(config), config.rollout.group_size
    if ":" in config.workflow.name:
        return attempts
    if config.evaluation.tasks:
        each = min(each, config.evaluation.fewest_samples)
    elif attempts == config.rollout.groups * each:
        return config.rollout.groups
    return min(attempts, ceil(attempts / each) + 1)  # the first task may be played in part


def _attempts(config: Config) -> int:
    """Return how many are played at once; of an evaluation the number of sources is unknown."""
    if config.evaluation.tasks:
        return config.rollout.concurrency
    return min(config.rollout.concurrency, config.rollout.groups * config.rollout.group_size)
