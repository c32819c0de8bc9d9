"""Sends all weights of a policy from the learner's GPU to vLLM's, by vLLM's own transfer.

Nothing of this file has run: it needs CUDA, and follows the sources of vLLM 0.32
(`vllm/distributed/weight_transfer`). With `nccl` learner and vLLM have GPUs of their own and form
a group; with `ipc` they share one, and vLLM opens the learner's memory. Every rank of the learner
calls `connect` and `send`, as gathering a sharded weight takes them all; rank 0 alone sends.
Where libnccl is missing a round may end without an error and without weights, which a probe after
each publication must find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from rolecall.engines.vllm.engine import VllmEngine


class Client:
    """What vLLM's sender asks of an engine, from a thread beside the event loop."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.engine.call("connect", facts=init_info)

    def start_weight_update(self) -> None:
        self.engine.call("begin_transfer")

    def update_weights(self, update_info: Any) -> None:
        self.engine.call("receive", facts=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """`Sender.send` labels the weights itself, by policy."""
        self.engine.call("end_transfer")


class Sender:
    """One rank's end of the transfer of a policy's weights."""

    def __init__(self, trainer: Any, engine: VllmEngine | None) -> None:
        """`trainer`: vLLM's; `engine` is None on all ranks but the first."""
        self.trainer, self.engine = trainer, engine

    async def send(self, policy: str, version: int) -> None:
        """Sample with the weights as they are now; requests under way go on with them."""
        await asyncio.to_thread(self._send, policy, version)

    def _send(self, policy: str, version: int) -> None:
        with _transferring(self.engine, policy, version):
            self.trainer.send_weights()


@contextmanager
def _transferring(engine: VllmEngine | None, policy: str, version: int) -> Iterator[None]:
    if engine is None:
        yield
        return
    engine.call("open_transfer")
    arrived: int | None = None
    try:
        yield
        arrived = version
    finally:
        engine.call("close_transfer", policy=policy, version=arrived)


def connect(
    engine: VllmEngine | None,
    model: torch.nn.Module,
    *,
    backend: Literal["nccl", "ipc"],
    rank: int,
    workers: int,
    address: str = "127.0.0.1",
    port: int = 0,
) -> Sender:
    """Join vLLM's `workers` (its tensor_parallel) in a group; returns when all have come.

    `engine` has been started, with the same `transfer`; it is None on all ranks but 0. `model`
    names its parameters as the checkpoint does; sharded ones are gathered one by one. With `nccl`
    the group meets at rank 0's `address` and `port`.
    """
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    info: Any
    if backend == "nccl":
        info = NCCLTrainerInitInfo(address, port, 1 + workers, rank=rank)
    else:
        info = IPCTrainerInitInfo(rank=rank)
    trainer = WeightTransferTrainerFactory.trainer_init(
        info,
        client=None if engine is None else Client(engine),
        source=ModuleSource(model),
    )
    return Sender(trainer, engine)
