"""Publishes weights to engines, and checks whether they arrived."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from rolecall.core.interfaces.engine import Engine
from rolecall.core.interfaces.learner import Learner, Written
from rolecall.core.interfaces.publisher import (
    DirectEngine,
    EmbeddedEngine,
    FileEngine,
    Probe,
    Replicas,
    WeightSource,
)
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
        if policy in self.pools:
            await self._publish_kept(policy, version)
            return
        engine, learner = self.engines[policy], self.learners[policy]
        if policy not in self.apart:
            _embedded(engine).load(policy, version, None)
            return
        model = self.models.get(policy)
        if policy in self.direct:
            assert isinstance(engine, DirectEngine)
            await self._send(policy, version, engine)
            return
        if isinstance(engine, Replicas):
            await engine.take(policy, version, self._source(policy))
            return
        if isinstance(engine, FileEngine) or learner.outside:
            folder = await self._written_here(policy)
        if isinstance(engine, FileEngine):
            await engine.load_files(policy, version, folder)
        else:
            assert model is not None, "an engine of this process samples a model of this process"
            if learner.outside:
                model.load(folder)
            _embedded(engine).load(policy, version, model.weights())

    async def _send(self, policy: str, version: int, engine: DirectEngine) -> None:
        """Send the weights to an engine on this machine."""
        if policy not in self._meetings:
            self._meetings[policy] = MeetingPoint("127.0.0.1", self.direct[policy])
        point = self._meetings[policy]
        sending = self.learners[policy].send(point.at)
        errors = await point.meet([engine.receive(policy, version, point.at, 0), sending])
        if error := next(filter(None, errors), None):
            del self._meetings[policy]
            raise error

    def _source(self, policy: str) -> WeightSource:
        """The weights that a learner has now."""
        learner = self.learners[policy]
        version = learner.version

        def have_moved() -> bool:
            return learner.updating or learner.version != version

        async def write() -> Written | None:
            written = None if have_moved() else await self._written(policy)
            return None if have_moved() else written

        return WeightSource(write, learner.send)

    async def _written(self, policy: str) -> Written:
        there = await self.learners[policy].write_there()
        return there or Written(await self._written_here(policy))

    async def _written_here(self, policy: str) -> Path:
        folder = self._folder(policy, room=self.learners[policy].num_bytes)
        await self.learners[policy].write_weights(folder)
        return folder

    async def check(self, policy: str) -> None:
        """Compare what sampler and learner say of some fixed tokens.

        Also where both hold the same weights: an engine may sample from copies of them.
        """
        engine, learner = self.engines[policy], self.learners[policy]
        tokens = (np.arange(PROBE) * 7919 % self.vocabulary[policy]).astype(np.int32)
        logprobs = await learner.probe(tokens)
        probe = Probe(policy, learner.version, tokens, logprobs, policy in self.rounded)
        if isinstance(engine, Replicas):
            await engine.prove(probe)
        else:
            probe.check(await engine.score(policy, tokens[:1], tokens[1:], temperature=1.0))

    async def _publish_kept(self, policy: str, step: int) -> None:
        """The weights that a pool kept after a step."""
        pool, engine = self.pools[policy], self.engines[policy]
        weights = pool.weights_after(step)
        if isinstance(engine, FileEngine):

            async def written() -> Written:
                folder = self._folder(policy, room=sum(t.nbytes for t in weights.values()))
                pool.model.write_weights(folder, weights)
                return Written(folder)

            if isinstance(engine, Replicas):
                await engine.take(policy, step, WeightSource(written))
                await engine.trust(policy)
            else:
                await engine.load_files(policy, step, (await written()).folder)
        else:
            _embedded(engine).load(policy, step, weights)

    def _folder(self, policy: str, *, room: int) -> Path:
        """An empty one; the last one is removed, which no engine reads any more."""
        if policy in self._folders:
            self._folders.pop(policy).cleanup()
        self._folders[policy] = scratch_folder(room=room)
        return Path(self._folders[policy].name)


def _embedded(engine: Engine) -> EmbeddedEngine:
    assert hasattr(engine, "load"), "an engine that takes tensors"
    return engine  # type: ignore[return-value]
