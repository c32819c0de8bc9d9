"""Says how long the longest rows of a run can be, as far as its config tells."""

from __future__ import annotations

from rolecall.config.schema import Config

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


def _in_context(answers: list[int], max_length: int | None) -> int:
    return min(sum(answers) + TASK_TOKENS, 1 << 30 if max_length is None else max_length)
