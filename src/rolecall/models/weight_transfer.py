"""Sends all weights of a model from the devices that train it to those that sample it.

The sender packs as many weights as fit into a buffer, and the receivers read them there
(`weight_channels.py` says how). They meet at a TCP store, through which no weight passes. Closing
it ends whatever one side waits for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import TCPStore

from rolecall.interfaces.learner import Rendezvous
from rolecall.models.weight_channels import Broadcast, Channel, Shared

BUCKET = 2**28  # bytes of the buffer; a larger weight has one of its own size
ALIGNED = 16  # bytes at which weights begin in it
CONNECT_S = 10.0  # in which the store must be reached
UNTIL_READY = timedelta(days=7)  # engines may have requests to end first
Shapes = Mapping[str, tuple[torch.dtype, torch.Size]]


class TransferError(RuntimeError):
    """The other side has gone, is late, or sends something else than was said."""


@dataclass(frozen=True, slots=True)
class Direct:
    """What a policy's engines are like that get weights from the learner's devices."""

    receivers: int  # processes of each engine
    shares_device: bool  # each of them, with a process of the learner


class MeetingPoint:
    """The store at which they meet; whoever has it decides when it ends."""

    def __init__(self, host: str, direct: Direct, *, engines: int = 1) -> None:
        """`host`: the address by which the others reach this process."""
        self._store: TCPStore | None = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        receivers = engines * direct.receivers
        self.at = Rendezvous(host, self._store.port, receivers, direct.shares_device)

    async def met(self, sides: Iterable[Awaitable[None]]) -> list[Exception | None]:
        """What each side raised. When one does, the others get a TransferError where they wait."""

        async def one(side: Awaitable[None]) -> Exception | None:
            try:
                await side
            except Exception as error:
                self.close()
                return error
            except BaseException:
                self.close()
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

    def of(self, buffer: Tensor) -> Tensor:
        """The weight as a view of the buffer."""
        return buffer[self.start : self.end].view(self.dtype).view(self.shape)


def buckets_of(shapes: Shapes, *, most: int) -> list[list[Slot]]:
    """The weights that are in the buffer together, in their order."""
    found: list[list[Slot]] = []
    start = 0
    for name, (dtype, shape) in shapes.items():
        slot = Slot(name, dtype, shape, start)
        if not found or slot.end > most:
            slot = Slot(name, dtype, shape, 0)
            found.append([])
        found[-1].append(slot)
        start = -(-slot.end // ALIGNED) * ALIGNED
    return found


class _End:
    """What both sides have."""

    def __init__(self, at: Rendezvous) -> None:
        """Raises TransferError where the store is not reached."""
        self.at = at
        self.rounds = itertools.count()
        self.channel: Channel | None = None
        with _told():
            self.store = TCPStore(
                at.host, at.port, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S)
            )

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = None


class Sender(_End):
    """One process of the sender's: one alone, or with `shares_device` each that has a device."""

    def __init__(self, at: Rendezvous, shapes: Shapes, *, device: torch.device) -> None:
        """`shapes`: of all weights, by the names of transformers."""
        super().__init__(at)
        self.device, self.buckets = device, buckets_of(shapes, most=BUCKET)
        told = {name: [str(dtype), list(shape)] for name, (dtype, shape) in shapes.items()}
        with _told():
            self.store.set("shapes", json.dumps(told))

    def send(self, weights: Iterable[Tensor]) -> None:
        """When all receivers are ready. `weights` come in the order of the shapes.

        Raises TransferError, and ValueError where a weight has another shape or dtype.
        """
        coming = iter(weights)
        with _told():
            self.store.wait([f"ready {next(self.rounds)}"], UNTIL_READY)
            if self.channel is None:
                self.channel = self._channel()
            for bucket in self.buckets:
                mine = itertools.islice(coming, len(bucket))
                for slot, weight in zip(bucket, mine, strict=True):
                    if (weight.dtype, weight.shape) != (slot.dtype, slot.shape):
                        raise ValueError(f"{slot.name} is {weight.dtype} {list(weight.shape)}")
                    slot.of(self.channel.buffer).copy_(weight.detach())
                self.channel.give()

    def _channel(self) -> Channel:
        size = _size(self.buckets)
        if self.at.shares_device:
            return Shared(self.store, self.at, self.device, size=size, sends=True)
        return Broadcast(self.store, self.at, 0, self.device, size)


class Receiver(_End):
    """One process that gets all weights."""

    def __init__(self, at: Rendezvous, number: int, *, device: torch.device) -> None:
        """`number`: among the receivers, from 0."""
        super().__init__(at)
        self.number, self.device = number, device
        self.buckets: list[list[Slot]] = []

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight by name, as a view of a buffer that the next one may change.

        Raises TransferError.
        """
        with _told():
            number = next(self.rounds)
            if self.store.add(f"at round {number}", 1) == self.at.receivers:
                self.store.set(f"ready {number}", "")
            if self.channel is None:
                self.channel = self._channel()
            for bucket in self.buckets:
                self.channel.take()
                for slot in bucket:
                    yield slot.name, slot.of(self.channel.buffer)
                self.channel.taken()

    def _channel(self) -> Channel:
        self.store.wait(["shapes"], UNTIL_READY)
        told = json.loads(self.store.get("shapes"))
        shapes = {name: (_dtype(dtype), torch.Size(shape)) for name, (dtype, shape) in told.items()}
        self.buckets = buckets_of(shapes, most=BUCKET)
        size = _size(self.buckets)
        if self.at.shares_device:
            return Shared(self.store, self.at, self.device, size=size, sends=False)
        return Broadcast(self.store, self.at, 1 + self.number, self.device, size)


class Sending:
    """The sender of one model, which is another one wherever the others meet anew."""

    def __init__(self) -> None:
        self._sender: Sender | None = None

    def send(
        self, at: Rendezvous, shapes: Shapes, weights: Iterable[Tensor], device: torch.device
    ) -> None:
        """Raises TransferError."""
        try:
            if self._sender is None or self._sender.at != at:
                self.close()
                self._sender = Sender(at, shapes, device=device)
            self._sender.send(weights)
        except TransferError:
            self.close()
            raise

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        self._sender = None


class Receiving:
    """The receiver of one model, which is another one wherever the others meet anew."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None

    def weights(
        self, at: Rendezvous, number: int, device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        """As those of `Receiver`. Raises TransferError."""
        try:
            if self._receiver is None or self._receiver.at != at:
                self.close()
                self._receiver = Receiver(at, number, device=device)
            yield from self._receiver.weights()
        except BaseException:  # also where not all have been read
            self.close()
            raise

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._receiver = None


def _size(buckets: list[list[Slot]]) -> int:
    return max((slot.end for bucket in buckets for slot in bucket), default=0)


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


@contextmanager
def _told() -> Iterator[None]:
    """What PyTorch raises inside is a TransferError."""
    try:
        yield
    except TransferError:
        raise
    except RuntimeError as error:  # also those of the store
        raise TransferError(f"weights did not pass: {error}".splitlines()[0]) from error
