"""Says how many tokens the rows of a run can fill an engine's cache with at once."""

from __future__ import annotations

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.schema import Config
from rolecall.engines.page_allocator import pages_of
from rolecall.models.cpu.kernels import PAGE

TASK_TOKENS = 512  # of a task and what roles are told, where only answers have a known length


def longest_row(config: Config, max_length: int | None) -> int:
    """Tokens of the longest prompt and answer together that is trained on, as far as the config
    says it.

    What all agents may say in one pass of the workflow, which the last of them may be told, beside
    the task; at most the model's context.
    """
    return _in_context([agent.sampling.max_tokens for agent in config.team.values()], max_length)


def longest_sampled(config: Config, max_length: int | None) -> int:
    """Return the tokens of the longest row that is sampled; evaluations may allow more."""
    trained, most = longest_row(config, max_length), config.evaluation.sampling.max_tokens
    if most is None or config.evaluation.tasks == 0:
        return trained
    return max(trained, _in_context([most] * len(config.team), max_length))


def cached_tokens(
    config: Config, name: str, engine: LocalEngineConfig, max_length: int | None
) -> int:
    """Return the tokens of all rows at once in the cache that this policy samples with.

    Pages are whole. Rows that begin alike share pages, but the config does not say which do.
    """
    pages = pages_of(longest_sampled(config, max_length))
    return rows_at_once(config, name, engine) * pages * PAGE


def rows_at_once(config: Config, name: str, engine: LocalEngineConfig) -> int:
    """Return the rows that are in flight at once in the cache that this policy samples with.

    Each agent that uses the cache has one row in each attempt that is played.
    """
    policy = config.policies[name]
    sharing = {name}
    if policy.adapter is not None:
        sharing |= {
            other for other, p in config.policies.items() if p.adapter and p.base == policy.base
        }
    agents = sum(agent.policy in sharing for agent in config.team.values())
    return min(engine.max_sequences, _attempts(config) * max(1, agents))


def _attempts(config: Config) -> int:
    """Return how many are played at once; of an evaluation the number of sources is unknown."""
    if config.evaluation.tasks:
        return config.rollout.concurrency
    return min(config.rollout.concurrency, config.rollout.groups * config.rollout.group_size)


def _in_context(answers: list[int], max_length: int | None) -> int:
    return min(sum(answers) + TASK_TOKENS, 1 << 30 if max_length is None else max_length)
