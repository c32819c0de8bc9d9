"""Publishes weights to an engine in this process, and checks whether they arrived."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rolecall.interfaces.learner import Learner
from rolecall.interfaces.publisher import EmbeddedEngine, PublishError
from rolecall.models.language_model import LanguageModel
from rolecall.rollout.opponent_pool import OpponentPool

PROBE = 16  # tokens whose log-probs are compared after a publication
LARGEST_GAP = 1e-3  # nats, float32; a sampler with other weights is much further off


class LocalPublisher:
    """Weights in this process: the very tensors that are trained, or a copy of them."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        models: Mapping[str, LanguageModel],
        learners: Mapping[str, Learner],
        pools: Mapping[str, OpponentPool],
        *,
        separate_weights: bool,
    ) -> None:
        """`models` by policy, those being trained; `pools` by the policy that plays them."""
        self.engine, self.models, self.learners, self.pools = engine, models, learners, pools
        self.separate_weights = separate_weights

    async def publish(self, policy: str, version: int) -> None:
        if policy in self.pools:
            self.engine.load(policy, version, self.pools[policy].weights_after(version))
            return
        if not self.separate_weights:
            self.engine.load(policy, version, None)
            return
        self.engine.load(policy, version, self.models[policy].weights())
        gap = await self._gap(policy)
        if not gap <= LARGEST_GAP and self.models[policy].is_float32:
            raise PublishError(
                f"after publishing {policy!r} version {version} the sampler's log-probs are off "
                f"by {gap:.3g} nats from the learner's"
            )

    async def _gap(self, policy: str) -> float:
        """Largest distance of the engine's log-probs from the learner's on some fixed tokens."""
        size = len(self.models[policy].tokenizer)
        tokens = (np.arange(PROBE) * 7919 % size).astype(np.int32)
        sampler = await self.engine.score(policy, tokens[:1], tokens[1:], temperature=1.0)
        return float(np.abs(sampler - await self.learners[policy].probe(tokens)).max())
