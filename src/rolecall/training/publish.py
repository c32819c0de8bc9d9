"""Publishes weights to engines, and checks whether they arrived."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from torch import Tensor

from rolecall.core.interfaces.engine import Engine
from rolecall.core.interfaces.learner import Learner, Rendezvous, Written
from rolecall.core.interfaces.weights import Probe, WeightSource
from rolecall.models.language_model import LanguageModel
from rolecall.models.weight_transfer import Direct, MeetingPoint
from rolecall.rollout.opponent_pool import OpponentPool
from rolecall.runtime.held_folders import HeldFolder
from rolecall.runtime.scratch import scratch_folder

PROBE = 16  # tokens whose log-probs are compared after a publication


class WeightPublisher:
    """Hands over tensors within this process, and files or what learners send between others."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        models: Mapping[str, LanguageModel],
        learners: Mapping[str, Learner],
        pools: Mapping[str, OpponentPool],
        *,
        vocabulary: Mapping[str, int],
        apart: Collection[str],
        rounded: Collection[str] = (),
        direct: Mapping[str, Direct] = MappingProxyType({}),
    ) -> None:
        """All by policy: `models` are those of this process, `pools` by the policy that plays them.

        `vocabulary`: tokens that each tokenizer knows; `apart`: policies whose engine has weights
        of its own; `rounded`: those that engine or learner compute in bfloat16; `direct`: those
        whose learner sends its weights to an engine on this machine.
        """
        self.engines, self.models, self.learners, self.pools = engines, models, learners, pools
        self.vocabulary, self.apart, self.rounded = vocabulary, apart, rounded
        self.direct = direct
        self._meetings: dict[str, MeetingPoint] = {}  # for those, by policy
        self._folders: dict[str, HeldFolder] = {}  # of each policy, the newest

    async def publish(self, policy: str, version: int) -> None:
        engine = self.engines[policy]
        if policy in self.pools:
            await engine.publish(policy, version, KeptWeights(self, policy, version))
            await engine.trust(policy)
        else:
            await engine.publish(policy, version, LearnerWeights(self, policy))

    async def check(self, policy: str) -> None:
        """Compare what sampler and learner say of some fixed tokens.

        Also where both hold the same weights: an engine may sample from copies of them.
        """
        learner = self.learners[policy]
        tokens = (np.arange(PROBE) * 7919 % self.vocabulary[policy]).astype(np.int32)
        logprobs = await learner.probe(tokens)
        probe = Probe(policy, learner.version, tokens, logprobs, policy in self.rounded)
        await self.engines[policy].prove(probe)

    async def send_here(
        self, policy: str, receive: Callable[[Rendezvous], Awaitable[None]]
    ) -> None:
        """Let the learner send its weights to an engine on this machine."""
        if policy not in self._meetings:
            self._meetings[policy] = MeetingPoint("127.0.0.1", self.direct[policy])
        point = self._meetings[policy]
        errors = await point.meet([receive(point.at), self.learners[policy].send(point.at)])
        if error := next(filter(None, errors), None):
            del self._meetings[policy]
            raise error

    def new_folder(self, policy: str, *, room: int) -> Path:
        """Make an empty folder; the last one is removed, which no engine reads any more."""
        if policy in self._folders:
            self._folders.pop(policy).cleanup()
        self._folders[policy] = scratch_folder(room=room)
        return Path(self._folders[policy].name)


class LearnerWeights(WeightSource):
    """The weights that a learner has now."""

    can_send = True

    def __init__(self, publisher: WeightPublisher, policy: str) -> None:
        self.publisher, self.policy = publisher, policy
        self.learner = publisher.learners[policy]
        self.version = self.learner.version

    async def tensors(self) -> dict[str, Tensor] | None:
        if self.policy not in self.publisher.apart:
            return None
        model = self.publisher.models[self.policy]
        if self.learner.outside:
            model.load(await self.files())
        return model.weights()

    async def files(self) -> Path:
        folder = self.publisher.new_folder(self.policy, room=self.learner.num_bytes)
        await self.learner.write_weights(folder)
        return folder

    async def files_anywhere(self) -> Written | None:
        if self._has_moved():
            return None
        written = await self.learner.write_there() or Written(await self.files())
        return None if self._has_moved() else written

    async def send(self, at: Rendezvous) -> None:
        await self.learner.send(at)

    async def hand_over(self, receive: Callable[[Rendezvous], Awaitable[None]]) -> bool:
        if self.policy not in self.publisher.direct:
            return False
        await self.publisher.send_here(self.policy, receive)
        return True

    def _has_moved(self) -> bool:
        return self.learner.updating or self.learner.version != self.version


class KeptWeights(WeightSource):
    """The weights that an opponent pool kept after a step."""

    def __init__(self, publisher: WeightPublisher, policy: str, step: int) -> None:
        self.publisher, self.policy = publisher, policy
        self.pool = publisher.pools[policy]
        self.weights = self.pool.weights_after(step)

    async def tensors(self) -> dict[str, Tensor] | None:
        return self.weights

    async def files(self) -> Path:
        room = sum(tensor.nbytes for tensor in self.weights.values())
        folder = self.publisher.new_folder(self.policy, room=room)
        self.pool.model.write_weights(folder, self.weights)
        return folder
