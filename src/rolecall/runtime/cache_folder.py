"""Says where what rolecall keeps for later runs of the same user lies."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/rolecall, or ~/.cache/rolecall. Raises OSError without a home."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "rolecall"
    try:
        return Path.home() / ".cache" / "rolecall"
    except RuntimeError as error:
        raise OSError("there is no home folder; set HOME or XDG_CACHE_HOME") from error
