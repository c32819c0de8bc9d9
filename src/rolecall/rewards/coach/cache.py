"""Keeps answers of a coach on disk, by the question without its request code.

One file a key, written aside and renamed: a killed run leaves whole files or none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from dataclasses import asdict
from pathlib import Path

from rolecall.rewards.coach.scores import Score, Usage, Verdict

log = logging.getLogger("rolecall")


class Cache:
    """Scores in a folder. Errors are never among them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Score | None:
        """Return the kept score; None if there is none that can be read."""
        try:
            held = json.loads(self._path(key).read_text(encoding="utf-8"))
            usage = Usage(held["usage"]["model"])
            return Score(Verdict(**held["verdict"]), usage, cached=True)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            log.warning("no cached score, asked again: file=%s error=%r", self._path(key), error)
            return None

    def put(self, key: str, score: Score, *, raw: str) -> None:
        """Store a score. raw: the answer as it came, to be read again if the rules of reading
        change.
        """
        held = {"raw": raw, "verdict": asdict(score.verdict), "usage": asdict(score.usage)}
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        aside.write_text(json.dumps(held), encoding="utf-8")
        os.replace(aside, path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def cache_key(*parts: object) -> str:
    """Hash of JSON values; equal parts give equal keys in every run."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
