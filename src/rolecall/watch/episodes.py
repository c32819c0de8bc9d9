"""Reads the attempts at one task as episodes, from which credit is explained."""

from __future__ import annotations

from pathlib import Path

from rolecall.core.types import Episode
from rolecall.storage.episode_io import read_parquet
from rolecall.watch.models import Missing
from rolecall.watch.tables import first_words

UNREADABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError)


def read_attempts(
    file: Path, task: str, source: str | None = None
) -> tuple[list[Episode], list[Missing]]:
    """Return the attempts at a task, rising by number; none, with the reason, if unreadable."""
    import pyarrow as pa

    try:
        episodes = read_parquet(file, task=task)
    except FileNotFoundError:
        return [], [Missing(what=file.name, why="it is not there")]
    except KeyError as error:
        why = f"an earlier version wrote {file.name}, without {error.args[0]}"
        return [], [Missing(what="credit", why=why)]
    except (*UNREADABLE, pa.ArrowException) as error:
        why = f"{file.name} cannot be read as episodes: {first_words(error)}"
        return [], [Missing(what="credit", why=why)]
    mine = [episode for episode in episodes if source in (None, episode.task.source)]
    return sorted(mine, key=lambda episode: episode.attempt or 0), []
