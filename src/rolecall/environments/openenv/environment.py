"""Lets agents act in an environment of an OpenEnv server."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.core.errors import ConfigError, InfrastructureError
from rolecall.core.interfaces.environment import World
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import optional
from rolecall.core.types import Task
from rolecall.environments.gymnasium.returns import Scale
from rolecall.environments.openenv.client import (
    WHOLE,
    Form,
    OpenEnvConnection,
    Places,
    is_for_agents,
    socket_address,
)
from rolecall.environments.remote.world import RemoteWorld, ServerTasks
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.secret_texts import read_token


class OpenEnvEnvironment:
    """An environment of an OpenEnv server; each episode is a session of its own.

    A server that fails, or does not answer in time, is an error of the episode, which is played
    again. A server that is full or that is started again is waited for.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self,
        url: str,
        rules: str = "",
        action: str = "message",
        show: str | None = None,
        low: float | None = None,
        high: float | None = None,
        step_rewards: bool = False,
        timeout_s: float = 60.0,
        token_env: str | None = None,
        test_size: int = 200,
    ) -> None:
        """url: the server's address, such as `http://localhost:8000`.
        rules: text that stands before the first observation.
        action: field of an action that takes what the agent says; `json`: it says the whole action.
        show: field of an observation that is shown; by default all of it, as JSON.
        low, high: least and largest sum of an agent's rewards, which score 0 and 1; by default the
            sum is the score.
        step_rewards: pay each action at once; leave out the reward `correct` with it, or the same
            is paid twice.
        timeout_s: most seconds that a request may take, the wait for the server included.
        token_env: environment variable with the server's token.
        test_size: tasks of the test split.
        """
        self.url, self.rules, self.test_size = url.rstrip("/"), rules, test_size
        self.address, self.form = socket_address(url), Form(rules, action, show)
        self.scale = Scale.make(low, high, pays_steps=step_rewards)
        if timeout_s <= 0:
            raise ValueError(f"timeout_s is {timeout_s:g}; write a number above 0")
        self.timeout_s, self.token = timeout_s, read_token(token_env)
        self._places = PerLoop(Places)

    def tasks(self, split: str) -> Sequence[Task]:
        return ServerTasks(split, source=self.url, test_size=self.test_size, prompt=self.rules)

    def open(self, task: Task, *, seed: int) -> World:
        connection = OpenEnvConnection(
            self.address, self.form, self._places.get(), timeout_s=self.timeout_s, token=self.token
        )
        return RemoteWorld(connection, task, self.scale)

    async def check(self) -> None:
        """Check that the server's schema has the fields of the options.

        Raises ConfigError, and InfrastructureError where the server cannot be reached.
        """
        schema = await self._read_schema()
        observation = schema.get("observation", {}).get("properties", {})
        if is_for_agents(observation):
            return
        fields = {"action": self.form.action, "show": self.form.show}
        names = {"action": schema.get("action", {}).get("properties", {}), "show": observation}
        for option, name in fields.items():
            listed = [field for field in names[option] if field != "metadata"]
            if name not in (None, WHOLE) and listed and name not in listed:
                what = "an action" if option == "action" else "an observation"
                raise ConfigError(
                    f"environment.{option} is {name!r}; {what} of {self.url} has "
                    f"{', '.join(listed)}"
                )

    async def _read_schema(self) -> JsonObject:
        httpx = optional("httpx", extra="remote")
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with httpx.AsyncClient(timeout=self.timeout_s, headers=headers) as client:
                answer = await client.get(f"{self.url}/schema")
                answer.raise_for_status()
                schema: JsonObject = answer.json()
                return schema
        except (httpx.HTTPError, ValueError) as error:
            raise InfrastructureError(f"{self.url}/schema: {error}") from error
