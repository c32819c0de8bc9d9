"""Serves an application at an address until the process is interrupted."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from rolecall.core.errors import ConfigError
from rolecall.core.optional import optional
from rolecall.serve.guard import Application, is_local

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Config

HEAD_S = 15.0  # that a connection may be open without a whole head of a request
END_S = 3.0  # that requests under way have when the server is told to end


def answer_at(host: str, port: int, app: FastAPI, *, token: str, **options: Any) -> None:
    """Return uvicorn's options.

    Raises ConfigError if nothing can listen at that address, and for an address that others can
    reach without a `token`.
    """
    check_address(host, token=token)
    uvicorn = optional("uvicorn", extra="serve")
    check_port(host, port)
    uvicorn.Server(settings(app, host=host, port=port, **options)).run()


def check_address(host: str, *, token: str) -> None:
    """Check an address; raises ConfigError if other machines can reach it and there is no token."""
    if not is_local(host) and not token:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and anybody could ask: name the "
            "environment variable of a token with --token-env, or listen on 127.0.0.1"
        )


def check_port(host: str, port: int) -> None:
    """Check that a server can listen at an address; raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def settings(app: FastAPI | Application, **options: Any) -> Config:
    """Return the settings of uvicorn: idle connections are closed, and the end is soon."""
    uvicorn = optional("uvicorn", extra="serve")
    h11_impl = optional("uvicorn.protocols.http.h11_impl", extra="serve")

    class Closing(h11_impl.H11Protocol):  # type: ignore[name-defined]
        """Closes itself when no request begins for HEAD_S."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._newest: Any = self.cycle
            self._idle = True
            self._timer = self.loop.call_later(HEAD_S, self._look)

        def handle_websocket_upgrade(self, event: Any) -> None:
            self._timer.cancel()  # from here on the connection is another protocol's
            super().handle_websocket_upgrade(event)

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(error)

        def _look(self) -> None:
            idle = self.cycle is None or self.cycle.response_complete
            if idle and self._idle and self.cycle is self._newest:
                self.transport.close()
                return
            self._newest, self._idle = self.cycle, idle
            self._timer = self.loop.call_later(HEAD_S, self._look)

    config: Config = uvicorn.Config(
        app, http=Closing, timeout_graceful_shutdown=int(END_S), **options
    )
    return config
