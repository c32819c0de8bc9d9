"""Leaves out the tasks whose prompts are too long for every agent.

An attempt at a task for which no context has room fails before anything is sampled, at every visit;
`rollout.max_prompt_tokens` sets a lower limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rolecall.agents import chat_template
from rolecall.agents.agent import Agent
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.types import Task
from rolecall.environments.mixed import Mixture
from rolecall.models.sizes import context_length
from rolecall.rollout.task_sampler import TaskSampler
from rolecall.setup.tasks import Tasks
from rolecall.setup.validate_options import check_task_sampler

notices = logging.getLogger("rolecall.notices")


def context_lengths(config: Config) -> dict[str, int]:
    """Return the most tokens of a row by policy, without policies for which it is not known."""
    lengths: dict[str, int] = {}
    for name, policy in config.policies.items():
        if config.takes_text(name):
            continue
        limits = [context_length(policy.base), config.get_engine(name).longest_row]
        if bounds := [limit for limit in limits if limit]:
            lengths[name] = min(bounds)
    return lengths


def drop_long_prompts(
    tasks: Tasks, config: Config, agents: Mapping[str, Agent], lengths: Mapping[str, int]
) -> Tasks:
    """Return the tasks that at least one agent can be asked; one line counts the others.

    Tasks that are generated when they are asked for are not looked at. Raises ConfigError if no
    step can be sampled from the rest.
    """
    most = config.rollout.max_prompt_tokens
    if most is not None:
        lengths = {name: min(lengths.get(name, most + 1), most + 1) for name in config.policies}
        _check_limit(tasks.sampler.train, agents)
    elif any(agent.truncation for agent in agents.values()):
        return tasks  # whatever a task's length, its prompt is cut
    readers = [_make_reader(agent, lengths.get(agent.policy.name)) for agent in agents.values()]
    dropped: list[str] = []

    def keep_short(part: Iterable[Task]) -> list[Task]:
        fitting = []
        for task in part:
            if any(reader.has_room(task.prompt) for reader in readers):
                fitting.append(task)
            else:
                dropped.append(task.id)
        return fitting

    if any(reader.limit is None for reader in readers):
        return tasks
    sampler = tasks.sampler
    train, test = _filtered(sampler.train, keep_short), keep_short(tasks.test)
    validation = keep_short(tasks.validation)
    if not dropped:
        return tasks
    longest = max(reader.limit or 0 for reader in readers)
    because = f"no agent's context (at most {longest} tokens) has room for their prompt"
    if most is not None and longest > most:
        because = f"their prompt has more than {most} tokens (rollout.max_prompt_tokens)"
    notices.warning(
        "%d tasks are left out, because %s; the first is %s", len(dropped), because, dropped[0]
    )
    sampler = TaskSampler(train, groups=sampler.groups, seed=sampler.seed, rates=sampler.rates)
    if problems := list(check_task_sampler(config, sampler)):
        raise ConfigError(*problems)
    return Tasks(sampler, test, validation)


def _check_limit(train: Sequence[Task], agents: Mapping[str, Agent]) -> None:
    """Raise ConfigError if `rollout.max_prompt_tokens` cannot be applied."""
    parts = train.parts.values() if isinstance(train, Mixture) else [train]
    if not any(isinstance(tasks, list) for tasks in parts):
        raise ConfigError(
            "rollout.max_prompt_tokens has no effect: tasks are generated when they are asked for; "
            "remove it"
        )
    if not all(agent.policy.tokenizer for agent in agents.values()):
        raise ConfigError(
            "rollout.max_prompt_tokens: agents behind an API have no tokenizer here to count with; "
            "remove it"
        )


def _filtered(
    train: Sequence[Task], kept: Callable[[Iterable[Task]], list[Task]]
) -> Sequence[Task]:
    if isinstance(train, Mixture):
        parts = {name: _filtered(tasks, kept) for name, tasks in train.parts.items()}
        return Mixture(parts, train.weights, label=train.label)
    return kept(train) if isinstance(train, list) else train


@dataclass(frozen=True, slots=True)
class _Reader:
    """An agent that may be asked the prompts of tasks."""

    agent: Agent
    limit: int | None  # tokens of its context; None if that is not known
    frame: int = 0  # tokens around a prompt

    def has_room(self, prompt: str) -> bool:
        """Return whether a prompt leaves room for an answer of one token at least."""
        if self.limit is None:
            return True
        # A token is a byte at least, so a short text need not be split into tokens.
        if self.frame + len(prompt.encode(errors="replace")) < self.limit:
            return True
        try:
            return _num_tokens(self.agent, prompt) < self.limit
        except Exception:  # templates raise errors of any kind; the episode will name this one
            return True


def _make_reader(agent: Agent, limit: int | None) -> _Reader:
    if limit is None or agent.policy.tokenizer is None:
        return _Reader(agent, None)
    try:
        return _Reader(agent, limit, frame=_num_tokens(agent, "x"))
    except Exception:  # as above
        return _Reader(agent, None)


def _num_tokens(agent: Agent, prompt: str) -> int:
    tokenizer, messages = agent.policy.tokenizer, agent.messages((prompt,), earlier=[])
    assert tokenizer is not None
    return len(chat_template.prompt_ids(tokenizer, messages, options=agent.policy.template))
