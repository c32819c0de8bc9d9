"""Serves the page of `rolecall watch` until it is interrupted."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rolecall.core.errors import ConfigError
from rolecall.core.optional import optional
from rolecall.serve.binding import check_address, check_port, settings
from rolecall.serve.guard import is_local
from rolecall.watch.jobs import Jobs
from rolecall.watch.runs import Runs
from rolecall.watch.security import Guard, Tokens
from rolecall.watch.server import Watch, make_app


@dataclass(frozen=True, slots=True)
class Address:
    """Says where the server listens, and the token that it asks for there."""

    host: str
    port: int
    token: str = ""

    def link(self, token: str) -> str:
        """Return the address of the page; of a server on all interfaces, on this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={quote(token)}" if token else "")


def serve_page(
    folders: list[Path],
    address: Address,
    *,
    allows_jobs: bool,
    opens_browser: bool,
    say: Callable[[str], None],
) -> None:
    """Serve the runs below folders. Raises ConfigError for folders and addresses of no use."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"there is no folder {folder}; name a run folder, or a folder of runs"
            )
    check_address(address.host, token=address.token)
    uvicorn = optional("uvicorn", extra="serve")
    check_port(address.host, address.port)
    watch = Watch(Runs(folders), jobs=Jobs() if allows_jobs else None)
    app = guard_app(watch, address, say=say)
    number = len(watch.runs.list_all())
    say(f"{number} run{'' if number == 1 else 's'} in {', '.join(map(str, folders))}")
    link = address.link(address.token if is_guarded(address) else "")
    say(f"Watch at {link}  (Ctrl-C ends it; runs go on)")
    if opens_browser:
        webbrowser.open(link)
    options = {"host": address.host, "port": address.port, "log_level": "warning"}
    uvicorn.Server(settings(app, **options)).run()


def guard_app(watch: Watch, address: Address, *, say: Callable[[str], None]) -> Guard:
    """Return the application with the guard around it."""

    def say_link(token: str) -> None:
        say(f"The link was used; the next one is {address.link(token)}")

    tokens = Tokens(address.token, say=say_link) if address.token else None
    return Guard(make_app(watch), host=address.host, tokens=tokens)


def is_guarded(address: Address) -> bool:
    """Return whether the page asks for a token: off loopback, or where one is named."""
    return bool(address.token) or not is_local(address.host)
