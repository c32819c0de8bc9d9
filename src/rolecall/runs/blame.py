"""`rolecall blame`: which turn of a run's episode decided it, found by replaying the episode."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rolecall.agents.agent import Policy
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.explain.blame import Blame, blame_episode
from rolecall.explain.blame_table import print_blame
from rolecall.explain.replays import ReplayError
from rolecall.rollout.episodes import continue_episode
from rolecall.runs.first_weights import load_first_weights
from rolecall.runs.replaying import Recording, begin_replays, open_recording
from rolecall.runs.services import running
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity
from rolecall.setup.build import build
from rolecall.training.run import Run


def blame(
    path: Path,
    name: str,
    *,
    step: int | None,
    draws: int,
    calls_tools: bool,
    overrides: list[str],
    quiet: bool,
) -> Record:
    """Print and return which turn decided an episode, and what each turn and agent gained.

    `name` is the id of an episode of a training step, `best` or `worst`. With `calls_tools` tools
    that act outside of an episode are called again. Raises ConfigError where there is no such
    episode, or where it cannot be replayed.
    """
    with open_recording(
        path, name, step=step, calls_tools=calls_tools, overrides=overrides, command="blame"
    ) as recording:
        untrained, episode = build(recording.plan), recording.episode
        with running(untrained), activity(f"replaying {episode.id}"):
            load_first_weights(untrained, recording.folder)
            result = asyncio.run(_blame(recording, untrained, draws))
    result.weights = recording.weights.describe(episode.step or 1)
    print_blame(result, PlainConsole(quiet=quiet))
    culprit, saviour = result.culprit, result.saviour
    return asdict(result) | {
        "culprit": culprit and culprit.turn,
        "saviour": saviour and saviour.turn,
    }


async def _blame(recording: Recording, untrained: Run, draws: int) -> Blame:
    run, episode = recording.run, recording.episode
    await begin_replays(run, untrained)
    trained = {agent for agent, a in run.context.agents.items() if a.policy.name in run.learners}
    base: dict[str, Policy] = {name: untrained.context.agents[name].policy for name in trained}
    try:
        return await blame_episode(
            episode,
            partial(continue_episode, run.context),
            draws=draws,
            base=base,
            concurrency=run.context.concurrency,
        )
    except ReplayError as error:
        raise ConfigError(
            f"{episode.id} cannot be replayed: {error}; `rolecall show RUN --why {episode.id}` "
            "explains its credit without a replay"
        ) from error
