"""Keeps earlier weights of a trained policy, and samples those that its opponent plays.

A policy that only plays against its newest weights can run in circles; playing against a pool of
earlier weights is fictitious self-play (1603.01121).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from safetensors.torch import load_file, save_file
from torch import Tensor

from rolecall.config.schema import OpponentPoolConfig
from rolecall.core.seeding import derive_seed
from rolecall.models.language_model import LanguageModel

Kept = tuple[int, dict[str, Tensor]]  # after which step, and the weights by name


class OpponentPool:
    """Copies of a policy's weights: those the run began with, and the newest of every few steps.

    They lie in the computer's memory; only the policy that plays has weights on the device.
    """

    def __init__(self, model: LanguageModel, config: OpponentPoolConfig, *, seed: int) -> None:
        self.model, self.config, self.seed = model, config, seed
        self.pool: list[Kept] = [self._now(0)]

    def after_step(self, step: int) -> None:
        """Keep the weights after a step whose turn it is; the oldest but the first give way."""
        if step % self.config.every == 0:
            self.pool.append(self._now(step))
            del self.pool[1 : len(self.pool) - self.config.keep + 1]

    def kept_step(self, step: int) -> int:
        """After which step the weights were kept that a step plays; the same in a resumed run."""
        return Random(derive_seed(self.seed, "opponents", step)).choice(self.pool)[0]

    @property
    def first(self) -> int:
        """The step of those that evaluations play against, so that these can be compared."""
        return self.pool[0][0]

    def weights_after(self, step: int) -> dict[str, Tensor]:
        """Return the weights that were kept after a step."""
        return dict(self.pool)[step]

    def save(self, folder: Path) -> None:
        for step, weights in self.pool:
            save_file(weights, folder / f"{step}.safetensors")

    def load(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"), key=lambda file: int(file.stem))
        self.pool = [(int(file.stem), load_file(file)) for file in files]

    def _now(self, step: int) -> Kept:
        weights = self.model.weights()
        return step, {name: tensor.to("cpu", copy=True) for name, tensor in weights.items()}
