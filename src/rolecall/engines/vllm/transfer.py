"""Sends all weights of a policy from the learner's GPU to vLLM's, by vLLM's own transfer.

Nothing of this file has run: it needs CUDA, and follows the sources of vLLM 0.32
(`vllm/distributed/weight_transfer`). With `nccl` learner and vLLM have GPUs of their own and form
a group; with `ipc` they share one, and vLLM opens the learner's memory. Where libnccl is missing a
round may end without an error and without weights, which the check after each publication finds.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import Module

from rolecall.engines.vllm.engine import VllmEngine

ADDRESS = "127.0.0.1"  # where the group of `nccl` meets


class TransferringEngine(VllmEngine):
    """vLLM with one policy, whose weights come from the learner's model in this process."""

    _sender: Any = None  # vLLM's

    async def load_model(self, policy: str, version: int, model: Module) -> None:
        """As `ModelEngine` says; requests under way go on with the new weights."""
        self._known(policy)
        await self.start()
        await asyncio.to_thread(self._send, policy, version, model)

    def _send(self, policy: str, version: int, model: Module) -> None:
        if self._sender is None:
            self._sender = self._connected(model)
        with self._open(policy, version):
            self._sender.send_weights()

    @contextmanager
    def _open(self, policy: str, version: int) -> Iterator[None]:
        self.call("open_transfer")
        arrived: int | None = None
        try:
            yield
            arrived = version
        finally:
            self.call("close_transfer", policy=policy, version=arrived)

    def _connected(self, model: Module) -> Any:
        """vLLM's sender of what `model` holds whenever it sends."""
        from vllm.distributed.weight_transfer.base import ModuleSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        info: Any = IPCTrainerInitInfo(rank=0)
        if self.options.transfer == "nccl":
            size = 1 + self.options.tensor_parallel
            info = NCCLTrainerInitInfo(ADDRESS, _free_port(), size, rank=0)
        return WeightTransferTrainerFactory.trainer_init(
            info, client=_Client(self), source=ModuleSource(model)
        )


class _Client:
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
        """The weights are labelled by policy, where the transfer is closed."""
        self.engine.call("end_transfer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])
