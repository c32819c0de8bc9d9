"""Starts the ranks of a learner as actors of Ray, which call the trainer back."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.cluster.actor_process import Place, settle_actor
from rolecall.cluster.copying import fetch_folder
from rolecall.cluster.endings import Traces, add_cause, describe_death, read_traces
from rolecall.cluster.pool import Seat, place_actor
from rolecall.cluster.session import PARTS, RaySession
from rolecall.learners.ranks import child
from rolecall.runtime.keyed_sockets import Address, callers, connect, read_json, send_json

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


ASK_S = 5.0  # in which a machine must say how a rank ended
LOOK_S = 1.0  # after which it is looked whether ranks that have not called still live


class RankHost:
    """An actor that is one rank."""

    def __init__(self, name: str, scratch: Path, gpus: str | None) -> None:
        self.place, self.scratch = settle_actor(name, scratch, gpus), scratch

    def locate(self) -> tuple[Place, str, int]:
        """Return the rank's place, its machine's address, and a port that is free there."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((address, 0))
            return self.place, address, free.getsockname()[1]

    def serve(self, address: Address, key: bytes, rank: int, alone: bool) -> None:
        """Serve until the trainer is gone. `alone`: all ranks are on one machine."""
        if alone:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        connection = connect(address, key)
        send_json(connection, rank)
        child.serve(connection, scratch=self.scratch.name)

    def ping(self) -> None:
        """Answer in a thread of its own, while the rank computes."""


class RankActors:
    """The ranks of one place."""

    def __init__(self, session: RaySession, name: str, seats: Sequence[Seat | None]) -> None:
        """They begin to start. `name`: of their logs; `seats`: the GPU of each, or None."""
        self.session = session
        self.actors = [self._actor(f"{name}-{rank}", rank, seat) for rank, seat in enumerate(seats)]
        self.places: list[Place] = []
        self._serving: list[ObjectRef] = []

    def _actor(self, name: str, rank: int, seat: Seat | None) -> ActorHandle:
        options, gpus = place_actor(self.session, seat, rank)
        always = {"max_restarts": 0, "max_concurrency": 2, "concurrency_groups": {"watch": 1}}
        return self.session.ray.remote(**always, **options)(RankHost).remote(
            name, self.session.scratch, gpus
        )

    def connect(self, *, timeout_s: float) -> tuple[list[Connection], str]:
        """Return the connections, and where the ranks find one another.

        Raises RuntimeError with the cause where one has ended or hangs. Their machines have room
        for them: what needs a GPU has that before (`cluster/pool.py`).
        """
        ray, until = self.session.ray, time.monotonic() + timeout_s
        try:
            answers = ray.get([actor.locate.remote() for actor in self.actors], timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise RuntimeError(f"it did not come up within {timeout_s:g} s") from error
        except ray.exceptions.RayError as error:
            raise RuntimeError(describe_death(error)) from error
        self.places = [process for process, _, _ in answers]
        here, alone = (
            ray.util.get_node_ip_address(),
            len({address for _, address, _ in answers}) == 1,
        )
        connections: dict[int, Connection] = {}
        with callers(here, number=len(self.actors)) as listening:
            self._serving = [
                actor.serve.remote(listening.address, listening.key, rank, alone)
                for rank, actor in enumerate(self.actors)
            ]
            while len(connections) < len(self.actors):
                try:
                    connection = listening.next(timeout_s=LOOK_S)
                    connections[read_json(connection)] = connection
                except (TimeoutError, EOFError, OSError):
                    self._check_called(connections, until)
        _, address, port = answers[0]
        return [connections[rank] for rank in range(len(self.actors))], f"tcp://{address}:{port}"

    def _check_called(self, found: dict[int, Connection], until: float) -> None:
        """Check that the missing ranks may still call; raises RuntimeError if one will not."""
        for rank in set(range(len(self.actors))) - found.keys():
            ended, _ = self.session.ray.wait([self._serving[rank]], timeout=0)
            why = self.describe_end(rank) if ended else "it did not call the trainer in time"
            if ended or time.monotonic() > until:
                raise RuntimeError(f"rank {rank}: {why}")

    def fetch(self, folder: Path) -> None:
        """Copy a folder that rank 0 has written to this machine, if it is another one.

        Raises RuntimeError with the cause where its machine is gone.
        """
        ray, source, here = self.session.ray, self.places[0].node, self.session.here
        if source != here:
            try:
                ray.get(
                    self.session.run_on(here, fetch_folder, folder, source, lambda size: folder)
                )
            except ray.exceptions.RayError as error:
                raise RuntimeError(describe_death(error)) from error

    @property
    def machine(self) -> str:
        return self.places[0].node

    def silent(self, *, within_s: float) -> int | None:
        """Return the first rank that does not answer in time, if there is one."""
        pings: list[ObjectRef] = [
            actor.ping.options(concurrency_group="watch").remote() for actor in self.actors
        ]
        for _ in range(PARTS):
            number = len(pings)
            answered, _ = self.session.ray.wait(pings, num_returns=number, timeout=within_s / PARTS)
            if len(answered) == number:
                return None
        late = [rank for rank, reference in enumerate(pings) if reference not in answered]
        return late[0] if late else None

    def describe_end(self, rank: int) -> str:
        """Return what Ray and the rank's machine say of its end."""
        ray, why = self.session.ray, "its connection was lost"
        try:
            ray.get(self._serving[rank], timeout=ASK_S)
        except ray.exceptions.GetTimeoutError:
            why = "it closed its connection"
        except ray.exceptions.RayError as error:
            why = describe_death(error)
        return add_cause(why, self._traces(rank))

    def host(self, rank: int) -> str:
        return self.places[rank].host

    def last_lines(self, rank: int) -> list[str]:
        traces = self._traces(rank)
        return ["its machine says nothing"] if traces is None else traces.lines

    def _traces(self, rank: int) -> Traces | None:
        process = self.places[rank]
        request = self.session.run_on(process.node, read_traces, process.log, process.oom_kills)
        try:
            traces: Traces = self.session.ray.get(request, timeout=ASK_S)
        except self.session.ray.exceptions.RayError:
            return None
        return traces

    def end(self) -> None:
        """End all ranks, also those that are stopped and take no message."""
        if not self.session.ray.is_initialized():
            return
        for actor in self.actors:
            self.session.ray.kill(actor)
        ended = [self.session.kill(process.node, process.pid) for process in self.places]
        self.session.ray.wait(ended, num_returns=len(ended), timeout=ASK_S)
