"""Carries a buffer of weights from the process that fills it to those that read it.

Where the readers have devices of their own, it is broadcast in a process group: over NCCL between
GPUs, over gloo between processors. Where they share the sender's, both sides have the buffer open:
by CUDA IPC on a GPU, as shared memory on a processor. No GPU has run this: the parts that name CUDA
and NCCL are untested.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroupGloo, Store

from rolecall.core.interfaces.learner import Rendezvous
from rolecall.runtime.bound_store import get_signed, set_signed
from rolecall.runtime.scratch import open_scratch_file, scratch_folder

if TYPE_CHECKING:
    from torch.distributed import Work


HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
POLL_S = 2e-4
LOOK_S = 0.5  # after which it is looked whether the store is still there
LIMIT = timedelta(minutes=2)  # for one buffer, when all are ready


class Channel(Protocol):
    """Carries the content of a buffer to the receivers."""

    buffer: Tensor  # uint8

    def give(self) -> None:
        """Send the full buffer, as the sender; it may be filled again when this returns."""

    def take(self) -> None:
        """Wait until the buffer is full, as a receiver."""

    def acknowledge(self) -> None:
        """Report, as a receiver, that the buffer has been read."""

    def close(self) -> None: ...


class Broadcast:
    """Broadcasts in a process group whose rank 0 sends."""

    def __init__(
        self, store: Store, at: Rendezvous, rank: int, device: torch.device, size: int
    ) -> None:
        """Connect to the other members and wait for them."""
        self.buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._store = store
        self._group: Any  # of NCCL or gloo
        self._work: Work | None = None  # the broadcast that is under way
        if device.type == "cuda":
            from torch.distributed import ProcessGroupNCCL

            with _errors_are_raised():
                options = ProcessGroupNCCL.Options()
                options._timeout = LIMIT
                self._group = ProcessGroupNCCL(store, rank, at.receivers + 1, options)
        else:
            self._group = ProcessGroupGloo(store, rank, at.receivers + 1, LIMIT)
        # One that fails from now on keeps nobody waiting in the lines above, which cannot be ended.
        if store.add("joined", 1) == at.receivers + 1:
            store.set("all have joined", "")
        store.wait(["all have joined"], LIMIT)

    def give(self) -> None:
        self._broadcast()

    def take(self) -> None:
        self._broadcast()

    def acknowledge(self) -> None:
        """Do nothing: the next broadcast is queued behind what still reads the buffer."""

    def _broadcast(self) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        work = self._work = self._group.broadcast([self.buffer], options)
        look = time.monotonic() + LOOK_S
        while not work.is_completed():
            if time.monotonic() > look:
                self._store.check(["there"])  # raises where the store has been closed
                look += LOOK_S
            time.sleep(POLL_S)
        work.wait()
        self._work = None

    def close(self) -> None:
        """Drop the group.

        A broadcast under way goes on until the others' connections end or `LIMIT` is over.
        """
        if self._work is not None:
            threading.Thread(target=_end, args=(self._group, self._work), daemon=True).start()
        self._group = self._work = None


def _end(group: Any, work: Work) -> None:
    """Wait here: a gloo group that is deleted would wait too, and let no other thread run."""
    if group.name() == "nccl":
        group.abort()
    while not work.is_completed():
        time.sleep(LOOK_S)


@contextmanager
def _errors_are_raised() -> Iterator[None]:
    """Let NCCL's groups made inside end their operations, not the process, when another one is
    lost.
    """
    previous = os.environ.get(HANDLING)
    os.environ[HANDLING] = "2"
    try:
        yield
    finally:
        os.environ.pop(HANDLING)
        if previous is not None:
            os.environ[HANDLING] = previous


class Shared:
    """Shares memory that sender and receivers have open."""

    def __init__(
        self, store: Store, at: Rendezvous, device: torch.device, *, size: int, sends: bool
    ) -> None:
        """Open the channel; a receiver waits for the sender, which makes the memory."""
        self._store, self._at, self._device = store, at, device
        self._folder = None
        self._numbers = itertools.count()
        self._number = 0  # of the buffer that is read
        self._name = "memory"
        if device.type == "cuda":
            self._name = f"memory of {torch.cuda.get_device_properties(device).uuid}"
        if not sends:
            store.wait([self._name], LIMIT)
            message = get_signed(store, self._name, secret=at.secret)
            self.buffer = self._opened(json.loads(message), size)
        elif device.type == "cuda":
            self.buffer = torch.empty(size, dtype=torch.uint8, device=device)
            handle = [
                base64.b85encode(item).decode() if isinstance(item, bytes) else item
                for item in self.buffer.untyped_storage()._share_cuda_()
            ]
            set_signed(store, self._name, json.dumps(handle), secret=at.secret)
        else:
            self._folder = scratch_folder(room=size)
            file = str(Path(self._folder.name) / "weights")
            self.buffer = torch.from_file(file, shared=True, size=size, dtype=torch.uint8)
            set_signed(store, self._name, json.dumps([file]), secret=at.secret)

    def _opened(self, handle: list[Any], size: int) -> Tensor:
        """Open the sender's memory. Raises RuntimeError where its file is none of ours."""
        if self._device.type != "cuda":
            try:
                memory = open_scratch_file(Path(handle[0]), size=size)
            except OSError as error:
                raise RuntimeError(str(error)) from error
            with memory:
                file = f"/proc/self/fd/{memory.fileno()}"  # no other file takes its place meanwhile
                return torch.from_file(file, shared=True, size=size, dtype=torch.uint8)
        _, *rest = handle
        parts = [base64.b85decode(item) if isinstance(item, str) else item for item in rest]
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

    def acknowledge(self) -> None:
        self._settle()
        if self._store.add(f"readers {self._number}", 1) == self._at.receivers:
            self._store.set(f"read {self._number}", "")

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
