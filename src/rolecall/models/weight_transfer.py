"""Sends all weights of a model from the devices that train it to those that sample it.

The sender packs as many weights as fit into a buffer, and the receivers read them there
(`weight_channels.py` says how). They meet at a TCP store, through which no weight passes. It
listens at one address, and what says where weights are is signed. Closing it ends whatever one side
waits for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from rolecall.core.interfaces.learner import Rendezvous
from rolecall.models.weight_channels import Broadcast, Channel, Shared
from rolecall.runtime.bound_store import get_signed, serve_store, set_signed

BUCKET = 2**28  # bytes of the buffer; a larger weight has one of its own size
ALIGNED = 16  # bytes at which weights begin in it
CONNECT_S = 10.0  # in which the store must be reached
UNTIL_READY = timedelta(days=7)  # engines may have requests to end first
Shapes = Mapping[str, tuple[torch.dtype, torch.Size]]


class TransferError(RuntimeError):
    """The other side has gone, is late, or sends something else than was said."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Describes a policy's engines that get weights from the learner's devices."""

    receivers: int  # processes of each engine
    shares_device: bool  # each of them, with a process of the learner


class MeetingPoint:
    """The store at which they meet; whoever has it decides when it ends."""

    def __init__(self, host: str, direct: Direct, *, engines: int = 1) -> None:
        """`host`: the address by which the others reach this process."""
        self._store: TCPStore | None = serve_store(host)
        receivers, secret = engines * direct.receivers, secrets.token_hex(32)
        self.at = Rendezvous(host, self._store.port, receivers, direct.shares_device, secret)

    async def meet(self, sides: Iterable[Awaitable[None]]) -> list[Exception | None]:
        """Return what each side raised; once one raises, the waiting others get a TransferError."""

        async def one(side: Awaitable[None]) -> Exception | None:
            try:
                await side
            except BaseException as error:
                self.close()
                if isinstance(error, Exception):
                    return error
                raise
            return None

        return await asyncio.gather(*map(one, sides))

    def close(self) -> None:
        self._store = None


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a weight in the buffer."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    start: int  # in bytes

    @property
    def end(self) -> int:
        return self.start + self.shape.numel() * self.dtype.itemsize

    def view(self, buffer: Tensor) -> Tensor:
        """Return the weight as a view of the buffer."""
        return buffer[self.start : self.end].view(self.dtype).view(self.shape)


def make_buckets(shapes: Shapes, *, most: int) -> list[list[Slot]]:
    """Group the weights that are in the buffer together, in their order."""
    buckets: list[list[Slot]] = []
    start = 0
    for name, (dtype, shape) in shapes.items():
        slot = Slot(name, dtype, shape, start)
        if not buckets or slot.end > most:
            slot = Slot(name, dtype, shape, 0)
            buckets.append([])
        buckets[-1].append(slot)
        start = -(-slot.end // ALIGNED) * ALIGNED
    return buckets


class _Side:
    """Holds what sender and receiver share; it is made anew wherever they meet anew."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._at: Rendezvous | None = None
        self._channel: Channel | None = None
        self._buckets: list[list[Slot]] = []

    def _meet(self, at: Rendezvous) -> int:
        """Return the number of this round; raises TransferError if the store is not reached."""
        if self._at != at:
            self.close()
            limit = timedelta(seconds=CONNECT_S)
            with _told():
                store = TCPStore(at.host, at.port, wait_for_workers=False, timeout=limit)
            self._store = PrefixStore(at.secret, store)
            self._at, self._rounds = at, itertools.count()
        return next(self._rounds)

    def _opened(self, at: Rendezvous, shapes: Shapes, *, rank: int) -> Channel:
        self._buckets = make_buckets(shapes, most=BUCKET)
        size = max((slot.end for bucket in self._buckets for slot in bucket), default=0)
        if at.shares_device:
            return Shared(self._store, at, self.device, size=size, sends=rank == 0)
        return Broadcast(self._store, at, rank, self.device, size)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = self._at = None


class Sender(_Side):
    """One process of the sender's: one alone, or with `shares_device` each that has a device."""

    def send(self, at: Rendezvous, shapes: Shapes, weights: Iterable[Tensor]) -> None:
        """Send all weights once the receivers are ready.

        `shapes`: of all weights, by the names of transformers, in the order of `weights`.
        Raises TransferError, and ValueError where a weight has another shape or dtype.
        """
        try:
            self._send(at, shapes, iter(weights))
        except BaseException:
            self.close()
            raise

    def _send(self, at: Rendezvous, shapes: Shapes, weights: Iterator[Tensor]) -> None:
        number = self._meet(at)
        with _told():
            self._store.wait([f"ready {number}"], UNTIL_READY)
            if self._channel is None:
                header = {
                    name: [str(dtype), list(shape)] for name, (dtype, shape) in shapes.items()
                }
                set_signed(self._store, "shapes", json.dumps(header), secret=at.secret)
                self._channel = self._opened(at, shapes, rank=0)
        for bucket in self._buckets:
            mine = itertools.islice(weights, len(bucket))
            for slot, weight in zip(bucket, mine, strict=True):
                if (weight.dtype, weight.shape) != (slot.dtype, slot.shape):
                    raise ValueError(f"{slot.name} is {weight.dtype} {list(weight.shape)}")
                slot.view(self._channel.buffer).copy_(weight.detach())
            with _told():
                self._channel.give()


class Receiver(_Side):
    """One process that gets all weights."""

    def weights(self, at: Rendezvous, number: int) -> Iterator[tuple[str, Tensor]]:
        """Yield each weight by name, as a view of a buffer that the next one may change.

        `number`: among the receivers, from 0. Raises TransferError.
        """
        try:
            with _told():
                yield from self._weights(at, number)
        except BaseException:  # also where not all have been read
            self.close()
            raise

    def _weights(self, at: Rendezvous, number: int) -> Iterator[tuple[str, Tensor]]:
        turn = self._meet(at)
        if self._store.add(f"at round {turn}", 1) == at.receivers:
            self._store.set(f"ready {turn}", "")
        if self._channel is None:
            self._store.wait(["shapes"], UNTIL_READY)
            header = json.loads(get_signed(self._store, "shapes", secret=at.secret))
            shapes = {n: (_dtype(dtype), torch.Size(shape)) for n, (dtype, shape) in header.items()}
            self._channel = self._opened(at, shapes, rank=1 + number)
        for bucket in self._buckets:
            self._channel.take()
            for slot in bucket:
                yield slot.name, slot.view(self._channel.buffer)
            self._channel.acknowledge()


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


@contextmanager
def _told() -> Iterator[None]:
    """Raise a TransferError for what PyTorch raises inside."""
    try:
        yield
    except TransferError:
        raise
    except RuntimeError as error:  # also those of the store
        raise TransferError(f"weights did not pass: {error}".splitlines()[0]) from error
