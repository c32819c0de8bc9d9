"""Reads figures that somebody has measured and written down: a small YAML instead of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, ValidationError, model_validator

from rolecall.config.errors import explain
from rolecall.config.section import Section
from rolecall.core.errors import ConfigError
from rolecall_lab.simulate.costs import Costs, EngineCosts, LearnerCosts, PublishCosts
from rolecall_lab.simulate.workload import SimulatedEpisode, SimulatedGroup, SimulatedTurn

Positive = Annotated[float, Field(gt=0, le=1e15)]
Seconds = Annotated[float, Field(ge=0, le=1e7)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
DRAWN = 64  # groups that are drawn from a distribution; steps draw from these


class Lengths(Section):
    """Describes how many tokens something has: a log-normal distribution, cut at `most`."""

    mean: Positive
    """Before it is cut."""
    spread: float = Field(0.0, ge=0, le=1e9)
    """Standard deviation."""
    most: int = Field(1_000_000_000, ge=1, le=1_000_000_000)
    """`sampling.max_tokens`."""

    def draw(self, random: np.random.Generator, number: int) -> list[int]:
        variance = math.log1p((self.spread / self.mean) ** 2)
        logs = random.normal(math.log(self.mean) - variance / 2, math.sqrt(variance), number)
        return [int(n) for n in np.clip(np.round(np.exp(logs)), 1, self.most)]


class MeasuredSampling(Section):
    """Holds the figures of what an engine does."""

    tokens_per_s: dict[Count, Positive] = Field(min_length=2)
    """Tokens/s of one engine, by the rows in its batch: {1: 120, 64: 4200}. Two sizes are needed,
    since a pass takes some time whatever its rows are; between more of them it is interpolated."""
    prompt_tokens_per_s: Positive | None = None
    """Prompt tokens/s that it reads; without it reading takes no time."""
    request_s: Seconds = 0.0
    """Seconds that a request and its answer are on their way to another process."""
    gpus: Count = 1
    """GPUs of one engine."""
    max_sequences: Count = 256
    """Most rows in its batch."""

    @property
    def costs(self) -> EngineCosts:
        points = sorted(self.tokens_per_s.items())
        return EngineCosts(
            tuple((float(rows), rows / rate) for rows, rate in points),
            prompt_token_s=1 / self.prompt_tokens_per_s if self.prompt_tokens_per_s else 0.0,
            gpus=self.gpus,
            max_rows=self.max_sequences,
        )


class MeasuredTraining(Section):
    """Holds the figures of what the ranks do."""

    tokens_per_s: Positive
    """Trained tokens/s of one rank, prompts included: passes over log-probs, forward and backward,
    and the optimizer's step together."""
    fixed_s: Seconds = 0.0
    """Seconds of an update whatever its tokens are."""
    tokens_per_batch: Count = 4096
    """Tokens of a micro-batch, which stays on one rank."""
    least_ranks: Count = 1
    """Fewest ranks that hold the model."""
    gradient_gb: float = Field(0.0, ge=0, le=1e9)
    """GB of gradients that ranks exchange in an update."""
    exchange_gb_per_s: Positive | None = None
    """GB/s at which a rank sends and receives them."""

    @model_validator(mode="after")
    def _has_both(self) -> MeasuredTraining:
        if self.gradient_gb and self.exchange_gb_per_s is None:
            raise ValueError("gradient_gb needs exchange_gb_per_s beside it")
        return self

    @property
    def costs(self) -> LearnerCosts:
        return LearnerCosts(
            token_s=1 / self.tokens_per_s,
            fixed_s=self.fixed_s,
            batch_tokens=self.tokens_per_batch,
            exchange_s=self.gradient_gb / (self.exchange_gb_per_s or math.inf),
            least_ranks=self.least_ranks,
        )


class MeasuredPublication(Section):
    """Holds the figures of what giving engines new weights takes."""

    seconds: Seconds = 0.0
    """Whatever their size is."""
    gb: float = Field(0.0, ge=0, le=1e9)
    """GB of weights."""
    gb_per_s: Positive | None = None
    """GB/s at which they arrive."""

    @model_validator(mode="after")
    def _has_both(self) -> MeasuredPublication:
        if self.gb and self.gb_per_s is None:
            raise ValueError("gb needs gb_per_s beside it")
        return self

    @property
    def costs(self) -> PublishCosts:
        rate = math.inf if self.gb_per_s is None else self.gb_per_s * 1e9
        return PublishCosts(self.seconds, self.gb * 1e9, rate)


class MeasuredEpisodes(Section):
    """Describes what episodes are like."""

    turns: Count = 1
    """Turns of an episode, one after the other."""
    prompt_tokens: Lengths
    """Of the first turn's prompt, which the attempts of a group share."""
    more_prompt_tokens: Lengths | None = None
    """What each later turn's prompt adds to what stood there; by default nothing."""
    answer_tokens: Lengths
    """Of each turn's answer."""
    environment_s: Seconds = 0.0
    """Seconds of tools and worlds between two turns."""

    def groups(self, group_size: int, *, seed: int) -> list[SimulatedGroup]:
        random = np.random.default_rng([seed, self.turns])
        return [
            [self._episode(random, prompt) for _ in range(group_size)]
            for prompt in self.prompt_tokens.draw(random, DRAWN)
        ]

    def _episode(self, random: np.random.Generator, prompt: int) -> SimulatedEpisode:
        answers = self.answer_tokens.draw(random, self.turns)
        added = [0] * self.turns
        if self.more_prompt_tokens is not None:
            added = [0, *self.more_prompt_tokens.draw(random, self.turns - 1)]
        rounds, context = [], prompt
        for number, (answer, more) in enumerate(zip(answers, added, strict=True)):
            context += more
            own, shared = (more, 0) if number else (0, prompt)
            turn = SimulatedTurn(own=own, shared=shared, context=context, tokens=answer)
            rounds.append((turn,))
            context += answer
        return SimulatedEpisode(tuple(rounds))


class Measured(Section):
    """The file that `--measured` names."""

    source: str = ""
    """Where the figures come from; printed with the result."""
    sampling: MeasuredSampling
    training: MeasuredTraining
    publication: MeasuredPublication = MeasuredPublication()
    episodes: MeasuredEpisodes
    turn_taking_s: Seconds = 0.0
    """Seconds that engines and learners on the same GPUs take to make room for one another."""
    restart_s: Seconds = 120.0
    """Seconds until an engine or the ranks that were lost work again."""

    @property
    def costs(self) -> Costs:
        return Costs(
            engine=self.sampling.costs,
            learner=self.training.costs,
            publish=self.publication.costs,
            turn_taking_s=self.turn_taking_s,
            request_s=self.sampling.request_s,
            environment_s=self.episodes.environment_s,
            restart_s=self.restart_s,
        )


def read_measured(path: Path) -> Measured:
    """Read a file of measured figures.

    Raises ConfigError with a line for each problem.
    """
    try:
        figures: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--measured: {path} cannot be read: {error}") from error
    if not isinstance(figures, dict):
        raise ConfigError(f"--measured: {path} is no mapping of figures; see docs/simulate.md")
    try:
        return Measured.model_validate(figures)
    except ValidationError as error:
        raise explain(error, Measured, figures, prefix=path.name) from error
