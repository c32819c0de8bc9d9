"""`rolecall whatif`: what an episode comes to when one of its turns says something else."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.explain.replays import ReplayError
from rolecall.explain.whatif import WhatIf, change_turn
from rolecall.explain.whatif_table import print_whatif
from rolecall.rollout.episodes import continue_episode
from rolecall.runs.replaying import Recording, begin_replays, open_recording
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity


def whatif(
    path: Path,
    turn: str,
    change: str | None,
    *,
    step: int | None,
    draws: int,
    weights: str | None,
    calls_tools: bool,
    overrides: list[str],
    quiet: bool,
) -> Record:
    """Print and return what an episode comes to as it was, and with a changed turn.

    `turn` is the id of a turn of a training step, `change` what it says instead (None: it is
    sampled anew). `weights`: latest, best, step-N or first; by default those that sampled it. With
    `calls_tools` tools that act outside of an episode are called again. Raises ConfigError where
    there is no such turn or checkpoint, or where the episode cannot be replayed.
    """
    with open_recording(
        path,
        turn,
        step=step,
        weights=weights,
        calls_tools=calls_tools,
        overrides=overrides,
        command="whatif",
    ) as recording:
        if turn not in {one.id for one in recording.episode.turns}:
            raise ConfigError(
                f"--turn {turn} is an episode; name one of its turns, such as "
                f"{recording.episode.turns[0].id if recording.episode.turns else 'one of another'}"
            )
        with activity(f"replaying {recording.episode.id}"):
            result = asyncio.run(_change(recording, turn, change, draws))
    result.weights = recording.weights.describe(recording.episode.step or 1)
    if recording.tools:
        result.notes.append(f"each replay called its tools again: {', '.join(recording.tools)}")
    print_whatif(result, PlainConsole(quiet=quiet))
    return asdict(result)


async def _change(recording: Recording, turn: str, change: str | None, draws: int) -> WhatIf:
    context, episode = recording.run.context, recording.episode
    await begin_replays(recording.run)
    try:
        return await change_turn(
            episode,
            turn,
            change,
            partial(continue_episode, context),
            draws=draws,
            concurrency=context.concurrency,
        )
    except ReplayError as error:
        raise ConfigError(
            f"{episode.id} cannot be replayed: {error}; `rolecall show RUN --why {turn}` explains "
            "its credit without a replay"
        ) from error
