"""A critic that reads the whole conversation and estimates its value before each joint step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss

from rolecall.config.optimizer import Optimizer
from rolecall.core.types import Episode
from rolecall.critics.transcript import StepsOf, Transcript, transcripts
from rolecall.learners.optimizer import Stepper
from rolecall.models.attention.layouts import Rows
from rolecall.models.language_model import LanguageModel
from rolecall.models.value_head import ValueHead
from rolecall.runtime.turn_order import joint_steps

HUBER_DELTA = 10.0
MOMENTS_DECAY = 0.99  # of the running moments of the targets


@dataclass(slots=True)
class Moments:
    """Running mean and mean square of the targets, by which they are normalised."""

    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        self.mean = MOMENTS_DECAY * self.mean + (1 - MOMENTS_DECAY) * float(values.mean())
        self.square = MOMENTS_DECAY * self.square + (1 - MOMENTS_DECAY) * float((values**2).mean())
        self.weight = MOMENTS_DECAY * self.weight + 1 - MOMENTS_DECAY

    @property
    def centre(self) -> float:
        return self.mean / self.weight if self.weight else 0.0

    @property
    def spread(self) -> float:
        if not self.weight:
            return 1.0
        return float(max(self.square / self.weight - self.centre**2, 1e-4)) ** 0.5


class JointCritic:
    """A model of its own that reads the whole conversation; one output for each agent."""

    def __init__(
        self,
        model: LanguageModel,
        optimizer: Optimizer,
        *,
        agents: list[str],
        budget: int,
        total_updates: int,
        steps_of: StepsOf = joint_steps,
    ) -> None:
        """`steps_of`: the turns of an episode, those together that share a value."""
        self.steps_of = steps_of
        self.model, self.agents, self.budget = model, agents, budget
        self.head = ValueHead(model.hidden_size, len(agents)).to(model.device)
        self.moments = Moments()
        parameters = [p for _, p in model.named_parameters()] + list(self.head.parameters())
        self.stepper = Stepper(parameters, optimizer, total=total_updates, module=model.model)

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write `values` [T] of every played turn, and `team_values` of its joint step by agent."""
        for episode, values in zip(episodes, self.predict_values(episodes), strict=True):
            for joint_step, expected in zip(self.steps_of(episode), values.tolist(), strict=True):
                for turn in joint_step:
                    by_agent = dict(zip(self.agents, expected, strict=True))
                    turn.training.team_values = by_agent
                    length = 1 if turn.tokens is None else len(turn.tokens)
                    turn.training.values = np.full(length, by_agent[turn.agent], dtype=np.float32)

    def predict_values(self, episodes: list[Episode]) -> list[NDArray[np.float64]]:
        """Return the values before each joint step: [joint steps, agents] of each episode."""
        by_episode = {e: np.zeros((len(self.steps_of(e)), len(self.agents))) for e in episodes}
        with torch.no_grad():
            for batch in self._batches(episodes):
                normalised = self._forward([row for _, row in batch]).cpu().numpy()
                values = normalised.astype(np.float64) * self.moments.spread + self.moments.centre
                ends = np.cumsum([len(row.reads) for _, row in batch])[:-1]
                for (episode, row), own in zip(batch, np.split(values, ends), strict=True):
                    by_episode[episode][row.joint_steps] = own
        return [by_episode[episode] for episode in episodes]

    def fit(
        self, episodes: list[Episode], targets: list[NDArray[np.float64]], *, epochs: int
    ) -> dict[str, float]:
        """Regress on `targets` [joint steps, agents] of each episode; metrics of the first epoch.

        `cut`: rows of transcripts whose oldest turns were dropped because all were too long.
        """
        if not any(len(target) for target in targets):
            return {}
        self.moments.add(np.concatenate([target.ravel() for target in targets]))
        target_of = dict(zip(episodes, targets, strict=True))
        first: float | None = None
        cut = sum(row.cut for batch in self._batches(episodes) for _, row in batch)
        for _ in range(epochs):
            total, count = 0.0, sum(target.size for target in targets)
            for batch in self._batches(episodes):
                target = np.concatenate([target_of[e][row.joint_steps] for e, row in batch])
                normalised = (target - self.moments.centre) / self.moments.spread
                values = self._forward([row for _, row in batch])
                wished = torch.from_numpy(normalised.astype(np.float32)).to(values.device)
                loss = huber_loss(values, wished, delta=HUBER_DELTA, reduction="sum")
                loss.backward()
                total += float(loss.detach())
            self.stepper.step(count)
            first = total / count if first is None else first
        centre, spread = self.moments.centre, self.moments.spread
        return {"loss": first or 0.0, "mean": centre, "spread": spread, "cut": float(cut)}

    def _batches(self, episodes: list[Episode]) -> Iterator[list[tuple[Episode, Transcript]]]:
        longest = self.model.max_length
        tokenizer = self.model.tokenizer
        rows = [
            (episode, row)
            for episode in episodes
            for row in transcripts(episode, tokenizer, longest=longest, steps_of=self.steps_of)
        ]
        batch: list[tuple[Episode, Transcript]] = []
        size = 0
        for row in sorted(rows, key=lambda pair: -len(pair[1].ids)):
            if batch and size + len(row[1].ids) > self.budget:
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += len(row[1].ids)
        if batch:
            yield batch

    def _forward(self, rows: list[Transcript]) -> Tensor:
        """Normalised values [joint steps of all rows, agents]."""
        device = self.model.device
        lengths = [len(row.ids) for row in rows]
        starts = np.cumsum([0, *lengths[:-1]])
        layout = Rows(lengths, device=device)
        tokens = torch.from_numpy(np.concatenate([row.ids for row in rows])).long().to(device)
        reads = np.concatenate([row.reads + s for row, s in zip(rows, starts, strict=True)])
        keep = torch.from_numpy(reads).long().to(device)
        _, hidden = self.model.forward(
            tokens, layout.position, layout=layout, keep=keep, hidden=True
        )
        assert hidden is not None
        values: Tensor = self.head(hidden)
        return values

    def save(self, folder: Path) -> None:
        """Save weights, head, moments and the optimizer's state."""
        self.model.save(folder)
        moments = [self.moments.mean, self.moments.square, self.moments.weight]
        state = {
            "head": self.head.state_dict(), "moments": moments, "stepper": self.stepper.state_dict()
        }  # fmt: skip
        torch.save(state, folder / "critic.pt")

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "critic.pt", weights_only=True, map_location=self.model.device)
        self.model.load(folder)
        self.head.load_state_dict(state["head"])
        self.moments = Moments(*state["moments"])
        self.stepper.load_state_dict(state["stepper"])
