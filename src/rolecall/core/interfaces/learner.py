"""Declares what a learner, which trains one policy, promises the trainer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rolecall.core.interfaces.algorithm import Objective
from rolecall.core.types import Batch, Floats, Ids, Turn

Annotation = Literal["prox_logprobs", "new_logprobs", "ref_logprobs", "values"]


class DivergedError(RuntimeError):
    """Several updates in a row had no finite loss or gradient."""


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Holds what a learner saw of the sampled tokens of some turns, one turn after the other."""

    turn_ids: list[str]
    lengths: Ids  # [turns] sampled tokens of each; their sum is M
    logprobs: Floats  # [M] before the first optimizer step
    entropies: Floats | None = None  # [M] in nats, of what each token was sampled from
    clipped: NDArray[np.bool_] | None = None  # [M] where the objective is clipped


@dataclass(slots=True)
class Update:
    """Holds what one optimizer step did."""

    grad_norm: float = 0.0  # of the policy, before clipping
    agent_grad_norms: dict[str, float] = field(default_factory=dict)  # exact, before clipping
    lr: float = 0.0
    agent_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    kl: float = 0.0  # mean of ratio - 1 - log ratio to the policy before the first of the steps
    skipped: str = ""  # the turn that had no finite loss or gradient
    tokens: list[TurnTokens] = field(default_factory=list)  # of each micro-batch
    steps: list[Update] = field(default_factory=list)  # those that were merged into this one


@dataclass(frozen=True, slots=True)
class Written:
    """A folder with weights, as `Learner.write_weights` writes it."""

    folder: Path
    machine: str = ""  # of a cluster, by Ray's name; "": the trainer's


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Tells where the sender and the receivers of a model's weights find one another."""

    host: str
    port: int
    receivers: int
    shares_device: bool  # of each receiver with one of the sender's processes
    secret: str = field(repr=False)  # by which they know what was written by one of them


class Learner(Protocol):
    """Trains one policy. Every method may be answered by another process.

    A class that names this one as its base needs no `shares_prefixes`, `write_there`, `offload`,
    `load_back`, `close` and `take_over_head`, `write_weights` and `send` only for engines of other
    processes, and `take_over` and `refresh_reference` only where a config asks for stages or that.
    """

    version: int  # updates that changed the weights
    updating: bool = False
    """Whether an update is under way, so that the weights are of no version."""
    outside: bool = False
    """Whether its weights lie in other processes than the trainer's."""
    num_bytes: int = 0
    """What `write_weights` writes."""
    place: object = None
    """What computes for it; learners of different places may update at the same time."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps that moved the weights."""
        ...

    @property
    def exact(self) -> bool:
        """Return whether its log-probs are those of the embedded engine, to float32 rounding."""
        ...

    @property
    def shares_prefixes(self) -> bool:
        """Return whether turns that begin alike may be packed in one prefix tree."""
        return True

    async def annotate(
        self, turns: list[Turn], what: set[Annotation], *, budget: int
    ) -> dict[str, dict[Annotation, Floats]]:
        """Return the named arrays [T] by turn id, with the current weights; no turn is changed.

        `budget`: most tokens in one forward pass. Raises ValueError for `ref_logprobs` without a
        reference.
        """
        ...

    async def update(
        self, steps: list[list[Batch]], algorithm: Objective, *, per_agent: bool
    ) -> list[Update]:
        """Take one optimizer step for each list of micro-batches.

        `per_agent`: also measure the norm of each agent's gradient. Raises DivergedError after
        several steps in a row without a finite gradient.
        """
        ...

    async def probe(self, tokens: Ids) -> Floats:
        """Return the log-prob [N - 1] of each token after those before it, at temperature 1."""
        ...

    async def write_weights(self, folder: Path) -> None:
        """Write a PEFT adapter, or all weights as safetensors by the names of transformers."""
        raise ValueError(f"{type(self).__name__} has no write_weights, which this engine needs")

    async def write_there(self) -> Written | None:
        """Write them where they are, for engines that fetch them; None: on no other machine.

        They stay there until the next call.
        """
        return None

    async def send(self, at: Rendezvous) -> None:
        """Hand all weights to the receivers that come there, from device to device.

        Raises TransferError where one of them is lost.
        """
        raise ValueError(f"{type(self).__name__} has no send; set engine.transfer=files")

    async def offload(self) -> None:
        """Free the device's memory while another part needs it."""
        return

    async def load_back(self) -> None:
        """Undo `offload`."""
        return

    async def close(self) -> None:
        """End what the learner has started."""
        return

    async def refresh_reference(self) -> None:
        """Make the current policy the reference; raises ValueError if that is impossible."""
        raise ValueError(f"{type(self).__name__} cannot refresh its reference")

    def take_over(self, folder: Path, *, moments: bool) -> None:
        """Begin with the weights of a learner that wrote `folder`, and with its moments if asked.

        Updates and the learning rate's schedule count from 0. Raises ValueError where it cannot.
        """
        raise ValueError(f"{type(self).__name__} cannot go on from another stage's learner")

    def take_over_head(self, folder: Path, *, moments: bool) -> bool:
        """Begin with its value heads alone. False: there are none, or it cannot."""
        return False

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...
