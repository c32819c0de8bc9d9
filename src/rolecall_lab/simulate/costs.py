"""Holds what each piece of a run's work takes, in seconds: fitted to a run or given by hand."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

Curve = tuple[tuple[float, float], ...]


def line(pass_s: float, row_s: float) -> Curve:
    """Return the curve of passes that take `pass_s`, and `row_s` more for each row."""
    return ((0.0, pass_s), (1.0, pass_s + row_s))


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Holds the costs of one engine.

    Each decoding pass gives every row of its batch one more token.
    """

    passes: Curve
    """(rows, seconds of a pass over them), two points at least, in the order of the rows; straight
    lines are between them and beyond. Each model with rows has passes of its own."""
    prompt_token_s: float = 0.0
    """Seconds of a prompt's token that the engine has not read yet."""
    episode_s: float = 0.0
    """Seconds that an episode's end takes: it is scored, paid and written down."""
    gpus: int = 1
    """GPUs of an engine (`tensor_parallel`)."""
    max_rows: int = 256
    """Most rows in its batch; others wait."""

    def pass_s(self, rows: int) -> float:
        """Seconds of a pass over rows of one model."""
        points = self.passes
        after = min(max(1, bisect_left(points, (float(rows),))), len(points) - 1)
        (low, low_s), (high, high_s) = points[after - 1], points[after]
        return max(0.0, low_s + (high_s - low_s) * (rows - low) / (high - low))


@dataclass(frozen=True, slots=True)
class LearnerCosts:
    """Holds the costs of an update, credit included."""

    token_s: float
    """Seconds that one rank takes for one trained token, prompts included."""
    fixed_s: float = 0.0
    """Seconds of an update that neither tokens nor ranks change."""
    batch_tokens: int = 4096
    """Tokens of a micro-batch, which stays on one rank (`learner.tokens_per_batch`)."""
    exchange_s: float = 0.0
    """Seconds in which a rank sends and receives all gradients once; two thirds of the way with
    three ranks: 2 (ranks - 1) / ranks times as long, as a ring takes it."""
    least_ranks: int = 1
    """Fewest ranks that hold the model."""

    def seconds(self, tokens: float, ranks: int) -> float:
        """Return the seconds of an update by these ranks.

        The rank with most micro-batches is waited for.
        """
        if tokens <= 0:
            return 0.0
        batches = max(1, math.ceil(tokens / self.batch_tokens))
        share = math.ceil(batches / ranks) / batches
        around = 2 * (ranks - 1) / ranks
        return self.fixed_s + tokens * share * self.token_s + around * self.exchange_s


@dataclass(frozen=True, slots=True)
class PublishCosts:
    """Holds the costs of giving all engines the new weights."""

    fixed_s: float = 0.0
    num_bytes: float = 0.0
    bytes_per_s: float = math.inf

    @property
    def seconds(self) -> float:
        return self.fixed_s + self.num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Cores:
    """Holds what processes without GPUs share."""

    number: float = math.inf
    """Cores of the machine; infinite where every process has a GPU."""

    def slowdown(self, processes: int) -> float:
        """Return how many times as long work takes while this many processes compute."""
        return max(1.0, processes / self.number)


@dataclass(frozen=True, slots=True)
class Costs:
    """Everything that takes time."""

    engine: EngineCosts
    learner: LearnerCosts
    publish: PublishCosts = PublishCosts()
    step_s: float = 0.0
    """Seconds of a rollout that are none of these: tasks are drawn, records are written."""
    turn_taking_s: float = 0.0
    """Seconds that engines and learners on the same GPUs take to make room for one another, once
    a step."""
    request_s: float = 0.0
    """Seconds that a request and its answer are on their way to an engine in another process; the
    engine does other things meanwhile."""
    environment_s: float = 0.0
    """Seconds of tools and worlds between two turns of an episode."""
    restart_s: float = 120.0
    """Seconds until an engine or the ranks that were lost work again."""
    save_every: int = 10
    """Steps between checkpoints."""
    cores: Cores = field(default_factory=Cores)
