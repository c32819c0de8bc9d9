"""Serves one rank: joins the others, then builds and calls learners as the trainer says.

The trainer is at the other end of a socket whose number is the first argument; the second one is
the trainer's process. This process ends with the trainer, however that ends, also while it computes
or waits for another rank.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from rolecall.core.json_types import Options
from rolecall.learners.ranks import wire
from rolecall.runtime.bound_store import serve_store
from rolecall.runtime.die_with_parent import end_with_parent
from rolecall.runtime.memory import seldom_collected

PATIENCE = timedelta(days=7)  # a rank may wait as long as another one computes
OF_OTHERS = ("closed by peer", "remote process exited", "connection reset", "broken pipe")


def main() -> None:
    number, trainer = int(sys.argv[1]), int(sys.argv[2])
    end_with_parent()
    if os.getppid() != trainer:
        return  # it was gone before
    os.set_inheritable(number, False)
    serve(Connection(number))


def serve(connection: Connection, *, scratch: str = "") -> None:
    """Answer calls, one after another, until the trainer closes the connection or is gone.

    `scratch`: what the processes of a cluster's run share on each machine.
    """
    inbox: SimpleQueue[wire.Message] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    with seldom_collected():
        from rolecall.learners.ranks.members import Members  # takes seconds, in which it may end

    [start] = inbox.get()
    _answer(connection, join, (start,))
    members = Members(start.device, scratch=scratch)
    while True:
        method, arguments = inbox.get()
        _answer(connection, getattr(members, method), arguments)


def _receive(connection: Connection, inbox: SimpleQueue[wire.Message]) -> None:
    while True:
        try:
            message = wire.read(connection)
        except (EOFError, OSError):
            os._exit(0)  # whatever the main thread does
        inbox.put(message)


def _answer(connection: Connection, method: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = (True, method(*arguments))
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        text = f"{type(error).__name__}: {error}"
        of_others = any(sign in text.lower() for sign in OF_OTHERS)
        answer = (False, wire.Failure(text, of_others))
    wire.send(connection, answer)


def join(start: wire.Start) -> None:
    """Find the other ranks, over gloo or, on GPUs, over NCCL, which no test has seen."""
    import torch
    from torch import distributed

    torch.set_num_threads(start.threads)
    device = torch.device(start.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.init()  # or the mesh of devices would choose one for this process
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        **_meeting(start),
        rank=start.rank,
        world_size=start.size,
        timeout=PATIENCE,
    )
    distributed.barrier()


def _meeting(start: wire.Start) -> Options:
    """Return where the ranks meet, as PyTorch takes it; a store of ours has one address."""
    url = urlsplit(start.rendezvous)
    if url.scheme != "tcp":
        return {"init_method": start.rendezvous}
    from torch.distributed import PrefixStore, TCPStore

    assert url.hostname is not None, start.rendezvous
    assert url.port is not None, start.rendezvous
    if start.rank == 0:
        store = serve_store(url.hostname, url.port, timeout=PATIENCE)
    else:
        store = TCPStore(url.hostname, url.port, is_master=False, timeout=PATIENCE)
    return {"store": PrefixStore("ranks", store)}


if __name__ == "__main__":
    main()
