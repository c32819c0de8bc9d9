"""Records episodes as traces of W&B Weave: an episode is a call, and each turn one below it.

`mode: offline` writes weave's own log, in `~/.weave/wal/ENTITY/PROJECT`, to be sent later with
`python -m weave.durability.wal_sender --entity ENTITY --project PROJECT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rolecall.core.errors import ConfigError
from rolecall.core.optional import optional
from rolecall.core.types import Episode, Turn

SETTINGS = {"print_call_link": False, "implicitly_patch_integrations": False}


class Weave:
    """Conversations with what each turn was shown, said, earned and used."""

    def __init__(
        self,
        folder: Path,
        project: str = "rolecall",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        """project: name under which runs stand.
        entity: W&B team or user; needed with `mode: offline`.
        mode: `offline` writes weave's log in the home folder, and sends nothing.

        Raises ConfigError where the server cannot be reached.
        """
        self._run = folder.resolve().name
        if mode == "offline" and entity is None:
            raise ConfigError("trackers: weave: mode offline needs the entity to send to")
        if mode == "offline":
            self._client = _offline_client(project=project, entity=str(entity))
            return
        weave = optional("weave", extra="weave", key="trackers")
        name = f"{entity}/{project}" if entity else project
        try:
            self._client = weave.init(name, settings=dict(SETTINGS))
        except Exception as error:  # of several libraries that it is made of
            raise ConfigError(f"trackers: weave: {error}") from error

    def log(self, step: int, record: dict[str, float]) -> None:
        """Log the step itself, with its metrics."""
        call = self._client.create_call("step", {"run": self._run, "step": step}, use_stack=False)
        self._client.finish_call(call, record)

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Credit is given, the update is still to come."""
        for episode in episodes:
            call = self._client.create_call(
                "episode",
                {"task": episode.task.id, "prompt": episode.task.prompt},
                attributes={"run": self._run, "step": step, "attempt": episode.attempt},
                display_name=episode.id,
                use_stack=False,
            )
            for turn in episode.turns:
                self._turn(turn, parent=call)
            output = {"answer": episode.answer, "rewards": episode.rewards} | episode.all_metrics
            error = RuntimeError(episode.error) if episode.error else None
            self._client.finish_call(call, output, error)

    def _turn(self, turn: Turn, *, parent: Any) -> None:
        call = self._client.create_call(
            turn.agent,
            {"messages": [{"role": m.role, "content": m.text} for m in turn.messages]},
            parent,
            attributes={"agent": turn.agent, "policy": turn.policy, "path": list(turn.path),
                        "chosen": turn.chosen},
            use_stack=False,
        )  # fmt: skip
        used: dict[str, float] = {}
        if turn.prompt is not None and turn.tokens is not None:
            used = {"prompt_tokens": len(turn.prompt), "completion_tokens": len(turn.tokens)}
        elif turn.usage is not None:
            used = {name: turn.usage[name] for name in ("prompt_tokens", "completion_tokens")}
        if used:
            call.summary = {"usage": {turn.policy: {"requests": 1, **used}}}
        advantage = None if turn.advantages is None else float(turn.advantages.mean())
        output = {"text": turn.text, "finish": turn.finish, "valid": turn.valid}
        self._client.finish_call(
            call, output | {"rewards": turn.all_rewards, "advantage": advantage}
        )

    def close(self) -> None:
        self._client.finish(use_progress_bar=False)


def _offline_client(*, project: str, entity: str) -> Any:
    """Return a client that writes each request to a file and sends none."""
    optional("weave", extra="weave", key="trackers")
    from weave.trace import env
    from weave.trace.context.weave_client_context import set_weave_client_global
    from weave.trace.settings import replace_settings
    from weave.trace.weave_client import WeaveClient
    from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer

    replace_settings({**SETTINGS, "enable_wal": True, "disable_wal_sender": True})
    server = RemoteHTTPTraceServer(env.weave_trace_server_url(), should_batch=False)
    client = WeaveClient(entity, project, server, ensure_project_exists=False)
    set_weave_client_global(client)  # without one in force nothing is traced
    return client
