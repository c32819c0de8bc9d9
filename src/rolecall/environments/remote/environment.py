"""Lets agents act in an environment that a gRPC server holds, of rolecall or of MRLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task
from rolecall.environments.gymnasium.returns import Scale
from rolecall.environments.remote.grpc_client import Channel, GrpcConnection, read_splits
from rolecall.environments.remote.world import RemoteWorld, ServerTasks
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.secret_texts import read_token


class RemoteEnvironment:
    """An environment of `rolecall serve environments`, or of another server of MRLM's protocol.

    A server that fails, or does not answer in time, is an error of the episode, which is played
    again. A server that is started again is waited for.
    """

    def __init__(
        self,
        address: str,
        environment: str,
        low: float | None = None,
        high: float | None = None,
        step_rewards: bool = False,
        timeout_s: float = 60.0,
        token_env: str | None = None,
        certificate: str | None = None,
        test_size: int = 200,
    ) -> None:
        """address: the server's host and port, such as `localhost:50051`.
        environment: name of the environment on the server.
        low, high: least and largest sum of an agent's rewards, which score 0 and 1; by default the
            sum is the score.
        step_rewards: pay each action at once; leave out the reward `correct` with it, or the same
            is paid twice.
        timeout_s: most seconds that a request may take, the wait for the server included.
        token_env: environment variable with the server's token.
        certificate: file of the certificates that the server's is checked with, for TLS.
        test_size: tasks of the test split.
        """
        if timeout_s <= 0:
            raise ValueError(f"timeout_s is {timeout_s:g}; write a number above 0")
        if certificate is not None and not Path(certificate).is_file():
            raise ValueError(f"certificate: there is no file {certificate}")
        self.address, self.name = address, environment
        self.scale, self.test_size = Scale.make(low, high, pays_steps=step_rewards), test_size
        token = read_token(token_env)
        self._channels = PerLoop(
            lambda: Channel(
                address,
                timeout_s=timeout_s,
                token=token,
                certificate=None if certificate is None else Path(certificate),
            )
        )

    def tasks(self, split: str) -> Sequence[Task]:
        return ServerTasks(split, source=self.name, test_size=self.test_size)

    def open(self, task: Task, *, seed: int) -> World:
        return RemoteWorld(GrpcConnection(self._channels.get(), self.name), task, self.scale)

    async def check(self) -> None:
        """Check that the server has the environment, and as many test tasks.

        Raises ConfigError, and InfrastructureError where the server cannot be reached.
        """
        listed = await self._channels.get().list_environments()
        if self.name not in listed:
            names = ", ".join(sorted(listed))
            raise ConfigError(
                f"environment.environment: {self.address} has no {self.name!r}; it has {names}"
            )
        number = read_splits(listed[self.name]).get("test", self.test_size)
        if self.test_size > number:
            raise ConfigError(
                f"environment.test_size is {self.test_size}, and the server's test split has "
                f"{number} tasks; write at most {number}"
            )

    async def close(self) -> None:
        """Close the connection of this event loop."""
        if (channel := self._channels.pop()) is not None:
            await channel.close()
