"""An application and an address in; requests answered until the process is interrupted."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from rolecall.config_errors import ConfigError
from rolecall.retrieval.extras import optional

if TYPE_CHECKING:
    from fastapi import FastAPI


def answer_at(host: str, port: int, app: FastAPI, **options: Any) -> None:
    """`options` of uvicorn. Raises ConfigError if nothing can listen at that address."""
    uvicorn = optional("uvicorn", extra="serve")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    uvicorn.run(app, host=host, port=port, **options)
