"""The keys of the `evaluation` section of a config: which held-out tasks, how often and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, field_validator

from rolecall.config.section import Section
from rolecall.core.json_types import JsonObject, JsonValue

DEFAULT, MOST_K = "default", 8
Samples = Annotated[int, Field(ge=1, le=100_000)]


class EvaluationSampling(Section):
    """Sampling parameters of evaluations, which replace those of every agent."""

    temperature: float | None = Field(None, ge=0.0, le=100.0)
    """Sampling temperature; write `evaluation.greedy` instead of 0."""
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    """Sample from the most likely tokens whose probabilities add up to top_p."""
    top_k: int | None = Field(None, ge=0, le=1_000_000_000)
    """Sample from the k most likely tokens; 0 keeps all."""
    max_tokens: int | None = Field(None, ge=1, le=10_000_000)
    """Most tokens of a turn."""

    @property
    def set_keys(self) -> JsonObject:
        """The keys that are set: {"temperature": 0.6, "top_p": 0.95}."""
        return self.model_dump(exclude_none=True)


class EvaluationConfig(Section):
    """Evaluation on held-out tasks."""

    tasks: int = Field(200, ge=0, le=1_000_000_000)
    """Most tasks per source; 0 turns evaluation off."""
    subset_seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    """Seed that draws the test tasks from all of a source; by default its first tasks are used."""
    samples: Samples | dict[str, Samples] = 8
    """Attempts at each task (n of avg@n and pass@k), as one number or by source, e.g.
    {aime24: 16, default: 1}. Sources that are not named have `default`, else 8."""
    k: int | None = Field(None, ge=1, le=100_000)
    """k of pass@k; by default 8, or `samples` if that is less."""
    every: int = Field(0, ge=0, le=1_000_000_000)
    """Steps between evaluations during the run; 0 evaluates only before and after it."""
    validation: int = Field(0, ge=0, le=1_000_000)
    """Tasks per source of a validation split, which evaluations during the run use to choose the
    checkpoint `best`. It is the environment's own split, else tasks held out of the train split.
    0 uses the test split, so that `best` is chosen on the tasks that are reported."""
    agent: str | None = None
    """Agent whose own score is reported, e.g. in a game, where the mean of all players is always 0.
    By default the team's score, else the mean of the agents' own. The curriculum, `rolecall
    compare` and `rolecall show` use this score too."""
    greedy: bool = False
    """Always take the most likely token."""
    sampling: EvaluationSampling = EvaluationSampling()
    """Sampling parameters of evaluations, for all agents, e.g. {temperature: 0.6, top_p: 0.95}.
    Those that are not set here are each agent's own."""

    @field_validator("samples", mode="before")
    @classmethod
    def _check_samples(cls, given: JsonValue) -> JsonValue:
        """Refuse a wrong number of a source in one line; the union would give one line for each
        type.
        """
        for source, number in given.items() if isinstance(given, Mapping) else ():
            if type(number) is not int or number < 1:
                raise ValueError(f"{source} needs a whole number of at least 1")
        return given

    def samples_per_task(self, source: str) -> int:
        """Return the number of attempts at each task of a source."""
        if isinstance(self.samples, int):
            return self.samples
        return self.samples.get(source, self.samples.get(DEFAULT, 8))

    @property
    def most_samples(self) -> int:
        """Attempts at each task of the source that has most."""
        return self.samples if isinstance(self.samples, int) else max(self._numbers)

    @property
    def fewest_samples(self) -> int:
        """Attempts at each task of the source that has fewest."""
        return self.samples if isinstance(self.samples, int) else min(self._numbers)

    @property
    def sources(self) -> list[str]:
        """The sources that `samples` names."""
        names = [] if isinstance(self.samples, int) else list(self.samples)
        return [name for name in names if name != DEFAULT]

    def choose_k(self, samples: int) -> int:
        """Return k of pass@k for tasks with that many attempts."""
        return min(MOST_K, samples) if self.k is None else self.k

    @property
    def headline(self) -> str:
        """The name of the mean over all tasks: avg@8, or avg@n where n differs by source."""
        numbers = {self.samples} if isinstance(self.samples, int) else set(self._numbers)
        return f"avg@{numbers.pop()}" if len(numbers) == 1 else "avg@n"

    @property
    def sampled_with(self) -> JsonObject:
        """The settings that override each agent's own sampling."""
        return self.sampling.set_keys | ({"temperature": 0.0} if self.greedy else {})

    @property
    def _numbers(self) -> list[int]:
        assert isinstance(self.samples, dict)
        return [*self.samples.values(), self.samples_per_task(DEFAULT)]


def check_evaluation(config: EvaluationConfig) -> Iterator[str]:
    """Yield a line for each key that contradicts another one, or has no effect."""
    for key in ("every", "subset_seed"):
        if config.tasks == 0 and getattr(config, key):
            yield (
                f"evaluation.{key} has no effect: evaluation.tasks is 0; remove it, or write "
                "evaluation.tasks above 0"
            )
    if config.validation and not config.every:
        yield (
            "evaluation.validation has no effect: evaluation.every is 0, so nothing is evaluated "
            "during the run; set evaluation.every to the steps between validations"
        )
    if config.k is not None and config.k > config.most_samples:
        yield (
            f"evaluation.k: pass@{config.k} needs evaluation.samples of at least "
            f"{config.k} (it is {config.most_samples})"
        )
    if config.samples == {}:
        yield "evaluation.samples: names no source; write a number, or {SOURCE: n, default: n}"
    if config.greedy and config.most_samples > 1:
        yield (
            "evaluation.samples has no effect with evaluation.greedy, where every attempt is the "
            "same; set evaluation.samples=1"
        )
    yield from _check_sampling(config)


def _check_sampling(config: EvaluationConfig) -> Iterator[str]:
    drawn = [name for name in config.sampling.set_keys if name != "max_tokens"]
    if config.greedy and drawn:
        yield (
            f"evaluation.sampling.{drawn[0]}: evaluation.greedy takes the most likely tokens, so "
            f"it has no effect; remove it, or set evaluation.greedy=false"
        )
    elif config.sampling.temperature == 0:
        yield (
            "evaluation.sampling.temperature: 0 takes the most likely tokens; write "
            "evaluation.greedy=true instead"
        )
