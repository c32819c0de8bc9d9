"""Finds the key by which ranks that torchrun starts know their trainer.

It cannot be passed on through torchrun's store, which answers whoever reaches its port. So it is a
variable of the environment, or lies in a file that only this user reads, as a cookie of Erlang or
of X11 does; the machines of a cluster usually share home folders.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from rolecall.core.errors import ConfigError
from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.own_files import open_own

VARIABLE = "ROLECALL_RANKS_KEY"
FILE = "ranks.key"
SHORTEST = 16  # letters of a key
BYTES = 32


def shared_key() -> bytes:
    """Return the key of this user's ranks, which is made at its first use.

    Raises ConfigError where there is no place for it, or the key is too short.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        try:
            text = _read_or_make(cache_folder() / FILE)
        except OSError as error:
            raise ConfigError(
                f"learner.ranks: no key for the ranks that torchrun starts: {error}; set "
                f"{VARIABLE} to the same random text on every machine"
            ) from error
    if len(text) < SHORTEST:
        raise ConfigError(
            f"{VARIABLE}: a key of {len(text)} letters can be guessed; write at least {SHORTEST}, "
            "as `openssl rand -hex 32` prints them"
        )
    return text.encode()


def _read_or_make(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        # Linked when it is whole: other ranks start at the same moment.
        new = file.with_name(f"{FILE}.{secrets.token_hex(8)}")
        with open(open_own(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as written:
            written.write(secrets.token_hex(BYTES))
        try:
            with suppress(FileExistsError):
                os.link(new, file)
        finally:
            new.unlink()
    with open(open_own(file, os.O_RDONLY)) as opened:
        if os.fstat(opened.fileno()).st_mode & 0o077:
            raise OSError(f"others may read {file}; run chmod 600 {file}")
        return opened.read().strip()
