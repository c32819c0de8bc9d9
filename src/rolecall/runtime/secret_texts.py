"""Takes keys and tokens out of texts before anybody sees them.

A server may repeat the key that it was sent in what it answers. Whatever reads a key from the
environment calls `remember_secret`; whatever shows the words of a server calls `excerpt`, which
takes keys out before it cuts: a key that is cut is found no more, and most of it is shown.
"""

from __future__ import annotations

import json
import os
from urllib.parse import quote, unquote, urlsplit

SHORTEST = 8  # letters: "EMPTY" and "none" are what servers without keys are sent
SHOWN = "(key)"
_forms: list[str] = []  # of all secrets, the longest first


def remember_secret(secret: str | None) -> None:
    """Take a secret out of all texts from now on, also as URLs and JSON write it."""
    if not secret or len(secret) < SHORTEST:
        return
    forms = {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1]}
    _forms[:] = sorted({*_forms, *forms}, key=lambda form: (-len(form), form))


def read_token(variable: str | None, *, key: str = "token_env") -> str:
    """Return the token in an environment variable, and remember it; "" where none is named.

    Raises ValueError, under `key`, if a named variable is not set.
    """
    token = "" if variable is None else os.environ.get(variable, "")
    if variable is not None and not token:
        raise ValueError(f"{key}: the environment variable {variable} is not set")
    remember_secret(token)
    return token


def remember_secrets_of_url(url: str) -> None:
    """Remember the password of an address as a secret: http://any:TOKEN@host."""
    password = urlsplit(url).password
    if password:
        remember_secret(unquote(password))
        remember_secret(password)


def scrub(text: str) -> str:
    """Return a text with (key) in place of each known secret."""
    for form in _forms:
        text = text.replace(form, SHOWN)
    return text


def excerpt(text: object, most: int) -> str:
    """Return the first `most` characters of what a server said, without secrets."""
    whole = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return scrub(whole)[:most]
