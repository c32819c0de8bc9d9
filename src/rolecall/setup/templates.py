"""Checks what chat templates can do against what the agents of a team need of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rolecall.agents.chat_template import Tokenizer
from rolecall.agents.tool_form import tool_form
from rolecall.agents.turn_form import turn_form
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError

notices = logging.getLogger("rolecall.notices")


def check_templates(config: Config, tokenizers: dict[str, Tokenizer]) -> None:
    """Raise ConfigError where an agent's tools cannot be used in its model's own format.

    `tokenizers`: by policy. A template without a system role is told in a line: system texts stand
    before the first user message then.
    """
    problems = list(_find_problems(config, tokenizers))
    if problems:
        raise ConfigError(*problems)
    for policy, tokenizer in tokenizers.items():
        agents = [a for a in config.team.values() if a.policy == policy and (a.system or a.tools)]
        if agents and not turn_form(tokenizer).has_system_role:
            notices.warning(
                "policies.%s.base: its chat template has no system role; system texts stand before "
                "the first user message", policy,
            )  # fmt: skip


def _find_problems(config: Config, tokenizers: dict[str, Tokenizer]) -> Iterator[str]:
    for name, agent in config.team.items():
        tokenizer = tokenizers.get(agent.policy)
        if agent.tools is None or agent.tools.format != "native" or tokenizer is None:
            continue
        if problem := tool_form(tokenizer).problem:
            yield (
                f"team.{name}.tools.format: native calls cannot be used with "
                f"{config.policies[agent.policy].base!r}: {problem}; write format: tags"
            )
