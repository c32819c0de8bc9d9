"""Reads from a run's folder what its steps had to do, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rolecall.core.errors import ConfigError
from rolecall.core.types import Ids
from rolecall.monitor.metrics import WALL_SHARES
from rolecall.storage.run_folder import RunFolder
from rolecall_lab.simulate.rounds import rounds
from rolecall_lab.simulate.workload import SimulatedEpisode, SimulatedGroup, SimulatedTurn

COLUMNS = (
    "task", "episode", "attempt", "turn", "agent", "policy", "path", "candidate", "trained",
    "prompt_token_ids", "token_ids", "advantages",
)  # fmt: skip
ARRAYS = ("prompt_token_ids", "token_ids", "advantages")
MOST_STEPS, MOST_TURNS = 12, 40_000  # the newest, which are most like those to come
LEAST_STEPS = 4  # however many turns they have


@dataclass(slots=True)
class MeasuredStep:
    """One step of a run."""

    number: int
    groups: list[SimulatedGroup]
    step_s: float
    rollout_s: float
    """As far as the trainer waited for it."""
    update_s: float
    """Credit included."""
    publish_s: float
    walls: dict[int, float]
    """Seconds of the slowest of the fastest N percent of the episodes, by N."""


def read_steps(folder: RunFolder) -> list[MeasuredStep]:
    """Return the newest steps that have both metrics and episodes.

    Raises ConfigError where none has.
    """
    records = {r["step"]: r for r in folder.read_metrics() if r["kind"] == "step"}
    if not records:
        raise ConfigError(
            f"{folder.path} has done no step yet: train it for some steps, or give figures with "
            "--measured"
        )
    steps: list[MeasuredStep] = []
    turns = 0
    for number in sorted(records, reverse=True):
        file = folder.episode_file(number)
        if len(steps) == MOST_STEPS or (len(steps) >= LEAST_STEPS and turns > MOST_TURNS):
            break
        if file.is_file() and (step := _step(records[number], file)).groups:
            steps.insert(0, step)
            turns += sum(len(episode.turns) for group in step.groups for episode in group)
    if not steps:
        raise ConfigError(
            f"{folder.path} has no episodes with tokens in {folder.episodes.name}/: a run on "
            "episodes is needed, sampled by an engine that gives tokens"
        )
    return steps


def _step(record: dict[str, Any], file: Path) -> MeasuredStep:
    whole = record["time/step_s"]
    walls = {share: record.get(f"time/episode_p{share}_s") for share in WALL_SHARES}
    return MeasuredStep(
        number=record["step"],
        groups=read_groups(file),
        step_s=whole,
        rollout_s=whole * record["time/rollout_share"],
        update_s=whole * (record["time/credit_share"] + record["time/update_share"]),
        publish_s=whole * record["time/publish_share"],
        walls={share: wall for share, wall in walls.items() if wall is not None},
    )


def read_groups(file: Path) -> list[SimulatedGroup]:
    """Return the groups of a step, with what their prompts share."""
    table = pq.read_table(file, columns=list(COLUMNS))
    rows = table.drop_columns(list(ARRAYS)).to_pylist()
    for name in ARRAYS:
        for row, values in zip(rows, _arrays(table.column(name)), strict=True):
            row[name] = values
    rows = [row for row in rows if row["turn"] and row["token_ids"] is not None]
    tasks: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        tasks.setdefault(row["task"], {}).setdefault(row["attempt"], []).append(row)
    groups = [[attempts[number] for number in sorted(attempts)] for attempts in tasks.values()]
    return [_group(number, groups) for number in range(len(groups))]


def _group(number: int, groups: Sequence[Sequence[list[dict[str, Any]]]]) -> SimulatedGroup:
    return [
        _episode(turns, list(_shared(turns, number, attempt, groups)))
        for attempt, turns in enumerate(groups[number])
    ]


def _arrays(column: Any) -> list[NDArray[Any] | None]:
    """A column of lists, without a Python number for each token."""
    whole = column.combine_chunks()
    values, ends = whole.values.to_numpy(), whole.offsets.to_numpy()
    there = whole.is_valid().to_pylist()
    return [values[ends[n] : ends[n + 1]] if valid else None for n, valid in enumerate(there)]


def _episode(turns: list[dict[str, Any]], shared: list[tuple[int, int]]) -> SimulatedEpisode:
    simulated = [_turn(row, own, common) for row, (own, common) in zip(turns, shared, strict=True)]
    order = rounds([tuple(row["path"]) for row in turns], [row["candidate"] for row in turns])
    return SimulatedEpisode(tuple(tuple(simulated[index] for index in these) for these in order))


def _turn(row: dict[str, Any], own: int, shared: int) -> SimulatedTurn:
    advantages = row["advantages"]
    return SimulatedTurn(
        own=own,
        shared=shared,
        context=len(row["prompt_token_ids"]),
        tokens=len(row["token_ids"]),
        model=row["policy"],
        agent=row["agent"],
        trained=bool(row["trained"]) and advantages is not None and bool(np.any(advantages)),
    )


def _shared(
    turns: list[dict[str, Any]],
    number: int,
    attempt: int,
    groups: Sequence[Sequence[list[dict[str, Any]]]],
) -> Iterator[tuple[int, int]]:
    """(own, shared) of each turn of one `attempt` of group `number`.

    What another group's prompt begins with too, and what an earlier turn of the episode does, is
    neither: it is read once for all.
    """
    group, other = groups[number], groups[number - 1 if number else -1]
    siblings = [group[0] if attempt else group[-1], group[attempt - 1]]
    for index, row in enumerate(turns):
        prompt = row["prompt_token_ids"]
        same = [turn for turn in turns[:index] if turn["policy"] == row["policy"]]
        cached = max(
            [_common(prompt, np.concatenate([t["prompt_token_ids"], t["token_ids"]])) for t in same]
            + [_common_turn(prompt, other[0], index, row) if other is not group else 0]
        )
        together = max(
            _common_turn(prompt, sibling, index, row) if sibling is not turns else 0
            for sibling in siblings
        )
        yield len(prompt) - max(cached, together), max(0, together - cached)


def _common_turn(prompt: Ids, turns: list[dict[str, Any]], index: int, row: dict[str, Any]) -> int:
    """Tokens that a prompt begins with as the turn of another episode in its place does."""
    if index >= len(turns) or turns[index]["policy"] != row["policy"]:
        return 0
    return _common(prompt, turns[index]["prompt_token_ids"])


def _common(a: Ids, b: Ids) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size
