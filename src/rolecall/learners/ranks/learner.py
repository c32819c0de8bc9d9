"""Trains one policy on ranks: what stays in the trainer's process."""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rolecall.core.interfaces.algorithm import Objective
from rolecall.core.interfaces.learner import Annotation, Learner, Rendezvous, Update, Written
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Batch, Floats, Ids, Turn
from rolecall.learners.packing import pack
from rolecall.learners.ranks.dealing import Dealt, deal, make_row
from rolecall.learners.ranks.group import RankError, RankGroup
from rolecall.learners.ranks.spec import SHARDS, Built, LearnerSpec
from rolecall.learners.ranks.wire import Shipped
from rolecall.learners.sums import Sums
from rolecall.learners.updates import check_diverged, is_far, make_update
from rolecall.models.weight_transfer import TransferError

PROBE = "probe"
log = logging.getLogger("rolecall")


class RankedLearner(Learner):
    """Deals micro-batches to the ranks and adds up what they say. Every method may raise RankError.

    Its calls wait in a thread, so the event loop goes on meanwhile.
    """

    outside = True

    def __init__(
        self, group: RankGroup, name: str, spec: LearnerSpec, *, place: object = None
    ) -> None:
        """`name`: of the policy, which no other learner of the group has; `place`: what learners
        have in common that cannot update at the same time, by default the group.
        """
        self.group, self.name, self.spec = group, name, spec
        self.place = group if place is None else place
        self.version = 0
        self.num_skipped = 0  # in a row
        self._num_steps = 0
        self._told_idle = False
        group.use(name)
        built: Built = group.call("build", name, spec)[0]
        self.num_bytes = built.num_bytes
        self._exact, self._has_reference = built.exact, built.has_reference
        self._shares_prefixes = built.shares_prefixes

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def exact(self) -> bool:
        return self._exact

    @property
    def shares_prefixes(self) -> bool:
        return self._shares_prefixes

    async def annotate(
        self, turns: list[Turn], what: set[Annotation], *, budget: int
    ) -> dict[str, dict[Annotation, Floats]]:
        noted: dict[str, dict[Annotation, Floats]] = {turn.id: {} for turn in turns}
        if "ref_logprobs" in what and not self._has_reference:
            raise ValueError("the policy has no reference")
        if turns and what:
            share = self.spec.share_prefixes and self.shares_prefixes
            batches = pack(turns, budget=budget, share=share, by_agent=False)
            for columns in await self._call("annotate", what, each=self._deal(batches)):
                noted |= columns
        return noted

    async def update(
        self, steps: list[list[Batch]], algorithm: Objective, *, per_agent: bool
    ) -> list[Update]:
        """Take one optimizer step for each list of micro-batches; all ranks take the same step."""
        self.updating = True  # for good where it is cut short
        updates: list[Update] = []
        for batches in steps:
            updates.append(await self._step(batches, algorithm, per_agent=per_agent))
            if is_far(updates[-1], algorithm):
                break
        self.updating = False
        self.version += any(not update.skipped for update in updates)
        return updates

    async def _step(self, batches: list[Batch], algorithm: Objective, *, per_agent: bool) -> Update:
        self._tell_idle(len(batches))
        agents = [(agent, list(mine)) for agent, mine in groupby(batches, lambda b: b.agent)]
        apart = per_agent and len(agents) > 1
        if not apart:
            agents = [("", batches)]
        dealt = [(agent, self._deal(mine)) for agent, mine in agents]
        each = [[(agent, mine[rank]) for agent, mine in dealt] for rank in range(self.group.size)]
        shipped = Shipped.pack(algorithm)
        answers = await self._call("step", shipped, apart, each=each)
        first: JsonObject = answers[0]
        sums = _added([answer["sums"] for answer in answers[:: self.spec.context_parallel]])
        update = make_update(first["grad_norm"], first["lr"], sums, first["norms"])
        self._num_steps = first["num_steps"]
        self.num_skipped = 0 if first["finite"] else self.num_skipped + 1
        if not first["finite"]:
            update.skipped = (await self._call("find_broken", shipped, batches))[0]
            check_diverged(self.num_skipped, update.skipped)
        return update

    def _tell_idle(self, count: int) -> None:
        """Say once that ranks have nothing to do: they still take part in what all do at once."""
        sharers = self.group.size // self.spec.context_parallel
        if count < sharers and not self._told_idle:
            self._told_idle = True
            log.warning(
                "learner policy=%s has %d micro-batches for %d ranks, so %d are idle: "
                "lower learner.tokens_per_batch or learner.ranks",
                self.name, count, sharers, sharers - count,
            )  # fmt: skip

    async def probe(self, tokens: Ids) -> Floats:
        row = make_row(tokens, name=PROBE)
        what: set[Annotation] = {"prox_logprobs"}
        answers = await self._call("annotate", what, [row])
        return np.asarray(answers[0][PROBE]["prox_logprobs"], dtype=np.float32)

    async def write_weights(self, folder: Path) -> None:
        await self._call("write", folder)
        await asyncio.to_thread(self.group.fetch, folder)

    async def write_there(self) -> Written | None:
        if (machine := self.group.machine) is None:
            return None
        return Written((await self._call("write_here"))[0], machine)

    async def send(self, at: Rendezvous) -> None:
        if wrong := next(filter(None, await self._call("send", at)), ""):
            raise TransferError(wrong)

    async def offload(self) -> None:
        await self._call("offload")

    async def load_back(self) -> None:
        await self._call("load_back")

    async def close(self) -> None:
        """End the ranks, where no other learner needs them."""
        await asyncio.to_thread(self.group.leave, self.name)

    def save(self, folder: Path) -> None:
        self.group.call("save", self.name, folder, self.version, self.num_skipped)

    def load(self, folder: Path) -> None:
        """Continue from `save`, on another number of ranks too.

        Raises ValueError where the folder is of a learner of another kind or model.
        """
        if (folder / SHARDS).is_dir() != (self.spec.kind == "fsdp"):
            raise ValueError(
                f"{folder} is no checkpoint of a learner with the name {self.spec.kind}; "
                "continue with the learner that wrote it"
            )
        try:
            [*_, state] = self.group.call("load", self.name, folder)
        except RankError as error:
            if error.raised:
                raise ValueError(str(error)) from error
            raise
        self.version, self.num_skipped, self._num_steps = state

    async def refresh_reference(self) -> None:
        await self._call("refresh_reference")

    def take_over(self, folder: Path, *, moments: bool) -> None:
        if self.spec.kind == "fsdp":  # its shares are read with all moments, or not at all
            raise ValueError("a learner with the name fsdp cannot go on from another stage's")
        self.group.call("take_over", self.name, folder, moments)

    def take_over_head(self, folder: Path, *, moments: bool) -> bool:
        return all(self.group.call("take_over_head", self.name, folder, moments))

    def _deal(self, batches: list[Batch]) -> Dealt:
        """Deal batches to the ranks; those that share rows get the same ones."""
        sharers = self.spec.context_parallel
        dealt = deal(batches, self.group.size // sharers, evenly=self.spec.kind == "fsdp")
        return [dealt[rank // sharers] for rank in range(self.group.size)]

    async def _call(self, method: str, *arguments: Any, each: list[Any] | None = None) -> list[Any]:
        """Call a method on all ranks, each with its own item of `each` as the last argument."""
        more = None if each is None else [(argument,) for argument in each]
        return await asyncio.to_thread(self.group.call, method, self.name, *arguments, each=more)


def _added(by_rank: list[dict[str, Sums]]) -> dict[str, Sums]:
    """Add the sums of all ranks, by agent."""
    totals: dict[str, Sums] = {}
    for sums in by_rank:
        for agent, mine in sums.items():
            totals.setdefault(agent, Sums()).take(mine)
    return dict(sorted(totals.items()))
