"""Defines the samples that an audit reads, whichever trainer wrote them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sample:
    """One sampled answer or turn, with what it earned and how it is trained on.

    A field is None where the dump does not say.
    """

    id: str
    source: str  # file and line
    group: str | None = None  # of samples that are compared with one another
    episode: str | None = None
    agent: str = ""
    attempt: int | None = None
    prompt: str | None = None
    text: str = ""
    reward: float | None = None  # what is compared
    reward_parts: dict[str, float] = field(default_factory=dict)  # should add up to the reward
    advantages: list[float] | None = None  # a single one, or one for each token
    prompt_ids: list[int] | None = None  # [P]
    ids: list[int] | None = None  # [T] of the response
    mask: list[bool] | None = None  # [T], or [P + T]: tokens with a loss
    is_foreign: list[bool] | None = None  # [T] tokens that a tool or the world wrote
    sampler_logprobs: list[float] | None = None  # [T] or one for each token with a loss
    trainer_logprobs: list[float] | None = None  # the same under the learner
    versions: list[int] | None = None  # of the weights that sampled it
    trainer_version: int | None = None
    error: str | None = None  # why it failed; "": it did not
    is_truncated: bool | None = None

    @property
    def advantage(self) -> float | None:
        """The mean advantage of its tokens; None where the dump has none."""
        if not self.advantages:
            return None
        return sum(self.advantages) / len(self.advantages)

    @property
    def is_pushed(self) -> bool | None:
        """True if any token has an advantage other than 0; None where the dump has none."""
        return None if self.advantages is None else any(abs(a) > 1e-9 for a in self.advantages)


def by_group(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return the samples of each group; those without one are left out."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.group is not None:
            groups[sample.group].append(sample)
    return dict(groups)


def by_agent(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return the samples of each agent."""
    agents: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        agents[sample.agent].append(sample)
    return dict(agents)


def list_rewards(samples: Iterable[Sample]) -> list[float]:
    """Return the rewards that are known."""
    return [sample.reward for sample in samples if sample.reward is not None]
