"""Keeps GPUs of a cluster for a run, and says where each of them is."""

from __future__ import annotations

import logging
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolecall.cluster.endings import describe_death
from rolecall.cluster.session import RaySession, pin_to_node
from rolecall.core.json_types import Options

if TYPE_CHECKING:
    from ray import ObjectRef


LOOK_S = 10.0  # between two looks whether Ray has found all GPUs
log = logging.getLogger("rolecall")
notices = logging.getLogger("rolecall.notices")


class NoRoomError(Exception):
    """The cluster does not have the GPUs of a pool now."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Describes one GPU of a pool."""

    address: str  # of its machine
    node: str  # Ray's name of the machine
    number: str  # on the machine, as CUDA_VISIBLE_DEVICES has it


class Pool:
    """A placement group with a bundle for each GPU, on as few machines as Ray can.

    Actors ask Ray for no GPUs: they are put on the machine of theirs, and told their numbers
    there. So several may share one, and one may have several.
    """

    def __init__(self, session: RaySession, name: str, size: int) -> None:
        """Begin to reserve `size` GPUs, which the cluster has."""
        from ray.util.placement_group import placement_group

        self.session, self.name, self.size = session, name, size
        self.group = placement_group([{"GPU": 1}] * size, strategy="PACK")
        self._gpus: list[Gpu] = []
        session.on_close.append(self._close)

    def gpus(self, *, again: bool = False) -> list[Gpu]:
        """Return all GPUs of the pool, those of one machine together.

        `again`: look anew, where a machine may have gone and others stand in for it. Raises
        NoRoomError where Ray does not have them all within cluster.start_timeout_s.
        """
        if again or not self._gpus:
            self._gpus = sorted(self._found(), key=_order)
        return self._gpus

    def _found(self) -> list[Gpu]:
        """Ask each bundle for its GPU; a machine that has gone keeps its own for a while."""
        ray, seconds = self.session.ray, self.session.section.start_timeout_s
        until, warned = time.monotonic() + seconds, False
        while (remaining := until - time.monotonic()) > 0:
            bundles = [self._bundle(number) for number in range(self.size)]
            try:
                return list(ray.get(bundles, timeout=min(LOOK_S, remaining)))
            except ray.exceptions.GetTimeoutError:
                for reference in bundles:
                    ray.cancel(reference)
            except ray.exceptions.RayError as error:  # its machine has just gone
                log.info("pool %s: %s", self.name, describe_death(error))
                time.sleep(min(1.0, remaining))
            if not warned:
                notices.warning("pool %s waits for %d free GPUs", self.name, self.size)
                warned = True
        raise NoRoomError(
            f"pool {self.name}: Ray has no {self.size} free GPUs within {seconds:g} s "
            "(cluster.start_timeout_s)"
        )

    def memory(self) -> int | None:
        """Bytes of the smallest of them; None where a machine does not say."""
        nodes = {gpu.node for gpu in self.gpus()}
        sizes = self.session.ray.get([self.session.run_on(node, _memory) for node in nodes])
        return None if None in sizes else min(sizes)

    def _bundle(self, number: int) -> ObjectRef:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=number)
        remote_gpu = self.session.ray.remote(num_cpus=0, num_gpus=1, scheduling_strategy=where)(
            _gpu
        )
        return remote_gpu.remote()

    def _close(self) -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self.group)


@dataclass(frozen=True, slots=True)
class Seat:
    """Holds what one actor computes on: GPUs of a pool, by their numbers there."""

    pool: Pool
    gpus: tuple[int, ...]

    def take(self, *, again: bool = False) -> tuple[Options, str]:
        """Return Ray's options for the actor, and its GPUs in the form of CUDA_VISIBLE_DEVICES.

        Raises NoRoomError as `Pool.gpus`, and where they are on several machines.
        """
        there = self.pool.gpus(again=again)
        mine = [there[number] for number in self.gpus]
        if len({gpu.node for gpu in mine}) > 1:
            raise NoRoomError(
                f"pool {self.pool.name}: an engine of {len(mine)} GPUs (engine.tensor_parallel) "
                f"would be on several machines: {', '.join(gpu.address for gpu in mine)}"
            )
        visible = ",".join(gpu.number for gpu in mine)
        return {"num_cpus": 0, "scheduling_strategy": pin_to_node(mine[0].node)}, visible


def place_actor(
    session: RaySession, seat: Seat | None, number: int, *, avoided: str = ""
) -> tuple[Options, str | None]:
    """Return Ray's options for the actor of this number among its kind, and the GPUs that it sees.

    Without a seat it has none. `avoided`: a machine that may be gone. Raises NoRoomError.
    """
    if seat is None:
        return session.actor_options(number, avoided=avoided), None
    return seat.take(again=bool(avoided))


def _order(gpu: Gpu) -> tuple[str, str, int, str]:
    return gpu.address, gpu.node, len(gpu.number), gpu.number


def _memory() -> int | None:
    """Bytes of the smallest GPU of a machine."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        megabytes = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return None
    return min(map(int, megabytes), default=0) * 2**20 or None


def _gpu() -> Gpu:
    """Return the GPU of the bundle that this runs in."""
    import ray

    [number] = ray.get_gpu_ids()
    node = ray.get_runtime_context().get_node_id()
    return Gpu(ray.util.get_node_ip_address(), node, str(number))
