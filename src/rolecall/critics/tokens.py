"""A critic with a model of its own that reads what an agent read, and values each of its tokens.

It reads the very ids of a turn, prompt and tokens, so its tokenizer must be that of the policies.
The value of a token is read where it is predicted: of what was known before it was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rolecall.config.optimizer import Optimizer
from rolecall.core.types import Episode, Turn
from rolecall.learners.optimizer import Stepper
from rolecall.models.attention.layouts import Rows
from rolecall.models.language_model import LanguageModel
from rolecall.models.value_head import ValueHead

ValueLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (values, old, returns) [N] -> loss [N]


class TokenCritic:
    """A model of its own with one output for each token of a turn."""

    def __init__(
        self, model: LanguageModel, optimizer: Optimizer, *, budget: int, total_updates: int
    ) -> None:
        """`budget`: most tokens in a forward pass; `total_updates`: optimizer steps of the run."""
        self.model, self.budget = model, budget
        self.head = ValueHead(model.hidden_size).to(model.device)
        parameters = [p for _, p in model.named_parameters()] + list(self.head.parameters())
        self.stepper = Stepper(parameters, optimizer, total=total_updates, module=model.model)

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write `values` [T] of every trained turn that was played."""
        with torch.no_grad():
            for batch in self._batches(_valued_turns(episodes)):
                values = self._forward(batch).cpu().numpy()
                ends = np.cumsum([len(turn.ids[1]) for turn in batch])[:-1]
                for turn, own in zip(batch, np.split(values, ends), strict=True):
                    turn.training.values = own.astype(np.float32)

    def fit(self, episodes: list[Episode], loss: ValueLoss, *, epochs: int) -> dict[str, float]:
        """Regress on the returns that credit wrote; the mean loss of the first epoch."""
        turns = [turn for turn in _valued_turns(episodes) if turn.returns is not None]
        count = sum(len(turn.ids[1]) for turn in turns)
        if not count:
            return {}
        first: float | None = None
        for _ in range(epochs):
            total = 0.0
            for batch in self._batches(turns):
                values = self._forward(batch)
                old = _joined([turn.training.values for turn in batch]).to(values.device)
                returns = _joined([turn.returns for turn in batch]).to(values.device)
                summed = loss(values, old, returns).sum()
                summed.backward()
                total += float(summed.detach())
            self.stepper.step(count)
            first = total / count if first is None else first
        return {"loss": first or 0.0}

    def _batches(self, turns: list[Turn]) -> Iterator[list[Turn]]:
        batch: list[Turn] = []
        size = 0
        for turn in turns:
            length = sum(map(len, turn.ids))
            if batch and size + length > self.budget:
                yield batch
                batch, size = [], 0
            batch.append(turn)
            size += length
        if batch:
            yield batch

    def _forward(self, turns: list[Turn]) -> Tensor:
        """Values of the sampled tokens of all turns, [N]."""
        device = self.model.device
        rows = [np.concatenate(turn.ids) for turn in turns]
        starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
        reads = [
            start + len(turn.ids[0]) - 1 + np.arange(len(turn.ids[1]))
            for turn, start in zip(turns, starts, strict=True)
        ]
        layout = Rows([len(row) for row in rows], device=device)
        tokens = torch.from_numpy(np.concatenate(rows)).long().to(device)
        keep = torch.from_numpy(np.concatenate(reads)).long().to(device)
        _, hidden = self.model.forward(
            tokens, layout.position, layout=layout, keep=keep, hidden=True
        )
        assert hidden is not None
        values: Tensor = self.head(hidden)[:, 0]
        return values

    def save(self, folder: Path) -> None:
        """Save weights, head and the optimizer's state."""
        self.model.save(folder)
        state = {"head": self.head.state_dict(), "stepper": self.stepper.state_dict()}
        torch.save(state, folder / "critic.pt")

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "critic.pt", weights_only=True, map_location=self.model.device)
        self.model.load(folder)
        self.head.load_state_dict(state["head"])
        self.stepper.load_state_dict(state["stepper"])


def _valued_turns(episodes: list[Episode]) -> list[Turn]:
    return [
        turn
        for episode in episodes
        for turn in episode.turns
        if turn.trained and turn.chosen and turn.tokens is not None and len(turn.tokens)
    ]


def _joined(columns: list[np.ndarray | None]) -> Tensor:
    present = [column for column in columns if column is not None]
    assert len(present) == len(columns), "credit and the critic have written all of them"
    return torch.from_numpy(np.concatenate(present).astype(np.float32))
