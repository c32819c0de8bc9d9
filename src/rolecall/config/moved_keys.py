"""Answers keys of earlier versions whose contents are elsewhere now."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

# Keys that only have another name; `*` stands for any one part of a key.
RENAMED = {
    "algorithm.critic_passes": "algorithm.critic_epochs",
    "algorithm.passes": "algorithm.epochs",
    "engine.copy": "engine.separate_weights",
    "engine.max_rows": "engine.max_sequences",
    "learner.ids_per_batch": "learner.tokens_per_batch",
    "policies.*.past": "policies.*.opponent_pool",
    "team.*.algorithm.critic_passes": "team.*.algorithm.critic_epochs",
    "team.*.algorithm.passes": "team.*.algorithm.epochs",
    "team.*.sampling.stop_ids": "team.*.sampling.stop_token_ids",
}
# Options of a coach that stand in a section of it.
COACH = {
    "structured": "answers.structured",
    "check_request": "answers.check_request",
    "format_retries": "answers.retries",
    "max_error_rate": "answers.max_error_rate",
    "error_window": "answers.error_window",
    "team": "view.team",
    "ground_truth_roles": "view.ground_truth_roles",
    "transcript_chars": "view.transcript_chars",
    "tool_chars": "view.tool_chars",
}
# Options of an LLM that a coach or an environment asks -> the key of the policy NAME that it names.
ASKED = {
    "model": "policies.NAME.engine.model",
    "key_env": "policies.NAME.engine.key_env",
    "url": "policies.NAME.engine.url",
    "base_url": "policies.NAME.engine.url",
    "concurrency": "policies.NAME.engine.concurrency",
    "deadline_s": "policies.NAME.engine.timeout_s",
    "request_s": "policies.NAME.engine.request_s",
    "pause_s": "policies.NAME.engine.pause_s",
    "temperature": "policies.NAME.replies.temperature",
    "max_tokens": "policies.NAME.replies.max_tokens",
    "budget_usd": "policies.NAME.engine.budget_usd",
    "budget_tokens": "policies.NAME.engine.budget_tokens",
    "step_budget_usd": "policies.NAME.engine.budget_usd, of the whole run,",
    "step_budget_tokens": "policies.NAME.engine.budget_tokens, of the whole run,",
    "price_prompt": "prices.NAME.prompt",
    "price_cached": "prices.NAME.cached",
    "price_completion": "prices.NAME.completion",
}
PRICES = {
    "usd_per_million_input": "prompt",
    "usd_per_million_cached": "cached",
    "usd_per_million_output": "completion",
}
PROVIDER = (
    "this key is gone; write policy: NAME, and engine: {name: openai, anthropic or google} in "
    "policies.NAME (of vertex: google with vertex: true); what was local is the reward "
    "checked_steps"
)


def find_successor(key: str, keys: Collection[str]) -> str:
    """Return what to write instead of a key of earlier versions; "" if there never was one.

    `keys`: those that are known in its section.
    """
    section, _, last = key.rpartition(".")
    if key == "rewards.coach.provider":
        return PROVIDER
    if section == "rewards.coach" and last in COACH:
        return f"this key is now {section}.{COACH[last]}"
    if last in ASKED and (section == "rewards.coach" or _asks(section, keys)):
        return f"this key is now {ASKED[last]} where {section}.policy is NAME"
    if last in PRICES and section == "engine":
        return f"this key is now prices.NAME.{PRICES[last]} where NAME is a policy of this engine"
    if last in PRICES and section.endswith(".engine"):
        return f"this key is now prices.{section.split('.')[1]}.{PRICES[last]}"
    return _renamed(key)


def _asks(section: str, keys: Collection[str]) -> bool:
    """Return whether a section is that of an environment which asks a policy."""
    return section.partition(".")[0] == "environment" and "policy" in keys


def _renamed(key: str) -> str:
    parts = key.split(".")
    for old, new in RENAMED.items():
        pattern = old.split(".")
        if len(pattern) == len(parts) and all(map(fnmatchcase, parts, pattern)):
            names = (own for own, name in zip(parts, pattern, strict=True) if name == "*")
            now = ".".join(next(names) if name == "*" else name for name in new.split("."))
            return f"this key is now {now}"
    return ""
