"""Sends all weights of a model from the devices that train it to those that sample it.

The sender packs as many weights as fit into a buffer, and the receivers read them there. Where the
receivers have devices of their own, the buffer is broadcast in a process group: over NCCL between
GPUs, over gloo between processors. Where they share the sender's, both sides have the buffer open:
by CUDA IPC on a GPU, as shared memory on a processor. They meet at a TCP store, through which no
weight passes. Closing it ends whatever one side waits for.

No GPU has run this: the parts that name CUDA and NCCL are untested.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import threading
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore

from rolecall.interfaces.learner import Rendezvous
from rolecall.runtime.scratch import scratch_folder

BUCKET = 2**28  # bytes of the buffer; a larger weight has one of its own size
ALIGNED = 16  # bytes at which weights begin in it
HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
CONNECT_S = 10.0  # in which the store must be reached
POLL_S = 2e-4
LOOK_S = 0.5  # after which it is looked whether the store is still there
UNTIL_READY = timedelta(days=7)  # engines may have requests to end first
LIMIT = timedelta(minutes=2)  # for one buffer, when all are ready
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


class Channel(Protocol):
    """How the content of a buffer reaches the receivers."""

    buffer: Tensor  # uint8

    def give(self) -> None:
        """By the sender, when the buffer is full; it may be filled again when this returns."""

    def take(self) -> None:
        """By a receiver; the buffer is full when this returns."""

    def taken(self) -> None:
        """By a receiver, when it has read the buffer."""

    def close(self) -> None: ...


class Broadcast:
    """In a process group whose rank 0 sends."""

    def __init__(
        self, store: TCPStore, at: Rendezvous, rank: int, device: torch.device, size: int
    ) -> None:
        """Waits for the others."""
        self.buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._store = store
        self._group: Any
        if device.type == "cuda":
            from torch.distributed import ProcessGroupNCCL

            with _errors_are_raised():
                options = ProcessGroupNCCL.Options()
                options._timeout = LIMIT
                self._group = ProcessGroupNCCL(store, rank, at.receivers + 1, options)
        else:
            self._group = ProcessGroupGloo(store, rank, at.receivers + 1, LIMIT)

    def give(self) -> None:
        self._broadcast()

    def take(self) -> None:
        self._broadcast()

    def taken(self) -> None:
        """The next broadcast is queued behind what still reads the buffer."""

    def _broadcast(self) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        work = self._group.broadcast([self.buffer], options)
        look = time.monotonic() + LOOK_S
        while not work.is_completed():
            if time.monotonic() > look:
                self._store.check(["there"])  # raises where the store has been closed
                look += LOOK_S
            time.sleep(POLL_S)
        work.wait()

    def close(self) -> None:
        """A group waits for its operations before it ends, so it ends in a thread of its own."""
        threading.Thread(target=_end, args=([self._group],), daemon=True).start()
        self._group = None


def _end(groups: list[Any]) -> None:
    groups[0].abort()
    groups.clear()


@contextmanager
def _errors_are_raised() -> Iterator[None]:
    """NCCL's groups made inside end their operations, not the process, when another one is lost."""
    given = os.environ.get(HANDLING)
    os.environ[HANDLING] = "2"
    try:
        yield
    finally:
        os.environ.pop(HANDLING)
        if given is not None:
            os.environ[HANDLING] = given


class Shared:
    """In memory that sender and receivers have open."""

    def __init__(
        self, store: TCPStore, at: Rendezvous, device: torch.device, *, size: int, sends: bool
    ) -> None:
        """A receiver waits for the sender, which makes the memory."""
        self._store, self._at, self._device = store, at, device
        self._folder = None
        self._numbers = itertools.count()
        self._number = 0  # of the buffer that is read
        self._name = "memory"
        if device.type == "cuda":
            self._name = f"memory of {torch.cuda.get_device_properties(device).uuid}"
        if not sends:
            store.wait([self._name], LIMIT)
            self.buffer = self._opened(json.loads(store.get(self._name)), size)
        elif device.type == "cuda":
            self.buffer = torch.empty(size, dtype=torch.uint8, device=device)
            handle = [
                base64.b85encode(part).decode() if isinstance(part, bytes) else part
                for part in self.buffer.untyped_storage()._share_cuda_()
            ]
            store.set(self._name, json.dumps(handle))
        else:
            self._folder = scratch_folder(room=size)
            file = str(Path(self._folder.name) / "weights")
            self.buffer = torch.from_file(file, shared=True, size=size, dtype=torch.uint8)
            store.set(self._name, json.dumps([file]))

    def _opened(self, handle: list[Any], size: int) -> Tensor:
        if self._device.type != "cuda":
            return torch.from_file(handle[0], shared=True, size=size, dtype=torch.uint8)
        _, *rest = handle
        parts = [base64.b85decode(part) if isinstance(part, str) else part for part in rest]
        storage = torch.UntypedStorage._new_shared_cuda(self._device.index or 0, *parts)
        opened = torch.empty(0, dtype=torch.uint8, device=self._device)
        return opened.set_(storage, 0, (size,))  # type: ignore[call-overload]

    def give(self) -> None:
        self._settle()
        number = next(self._numbers)
        self._store.set(f"{self._name} is full {number}", "")
        self._store.wait([f"read {number}"], LIMIT)
        for key in (f"{self._name} is full", "readers", "read"):  # nobody waits for the last ones
            self._store.delete_key(f"{key} {number - 1}")
        if self._folder is not None:  # all have it open
            self._folder.cleanup()
            self._folder = None

    def take(self) -> None:
        self._number = next(self._numbers)
        self._store.wait([f"{self._name} is full {self._number}"], LIMIT)

    def taken(self) -> None:
        self._settle()
        if self._store.add(f"readers {self._number}", 1) == self._at.receivers:
            self._store.set(f"read {self._number}", "")

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


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
