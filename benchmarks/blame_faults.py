"""Count how often `rolecall blame` names the turn of a planted fault, and blames harmless turns.

    python benchmarks/blame_faults.py runs/math runs/search runs/planner --faults 200

Each run is a trained team. A turn of an episode that would succeed is replaced: by a fault (a
number, a name or a verdict is changed), or by other words that mean the same. Which of them matter
is decided by 64 draws that `blame` does not see: a fault costs at least half of what the team could
expect, a harmless change at most a tenth. `blame` then gets 16 draws of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from rolecall.core.types import Episode, Swap, Turn
from rolecall.explain.blame import blame_episode
from rolecall.rollout.episodes import RolloutContext, continue_episode, play, play_episode
from rolecall.runs.services import running
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.run import Run

CHECKING = 64  # draws that decide whether a change matters
FIRST_CHECK = 1000  # number of the first of them: `blame` uses 0 to 15
VERDICTS = {"approve": "reject", "reject": "approve", "yes": "no", "no": "yes"}
TAG = re.compile(r"(<(\w+)>)([^<]+)(</\2>)")


@dataclass(frozen=True, slots=True)
class Case:
    """A changed turn, and what `blame` said of the episode."""

    run: str
    kind: str  # fault | harmless
    turn: str
    agent: str
    before: float  # value of the prefix without the turn, by the checking draws
    after: float  # and with it
    named: str  # the turn that was blamed, or ""
    seconds: float


def plant_fault(text: str, random: Random) -> str | None:
    """Return the text with its last verdict, name or number changed; None if it has none."""
    tags = [match for match in TAG.finditer(text) if match[2] != "think"]
    if tags:
        last = tags[-1]
        word = last[3].strip().lower()
        names = sorted({*re.findall(r"\b[A-Z][a-z]+ [A-Z][a-z]+\b", text)} - {last[3].strip()})
        other = VERDICTS.get(word) or (random.choice(names) if names else None)
        if other is not None:
            return text[: last.start(3)] + other + text[last.end(3) :]
    numbers = [*re.finditer(r"\d+", text)]
    if not numbers:
        return None
    last_number = numbers[-1]
    wrong = str(int(last_number[0]) + random.choice([1, 2, 3, 10]))
    return text[: last_number.start()] + wrong + text[last_number.end() :]


def rephrase(text: str, random: Random) -> str | None:
    """Return the text without its first step: what counts stands at its end."""
    head, space, rest = text.partition(" ")
    return rest if space and rest.strip() else f"{head} {text}" if head else None


async def measure_value(context: RolloutContext, episode: Episode, kept: int) -> float:
    """Return what the prefix is worth over the checking draws."""
    played = await asyncio.gather(
        *(
            continue_episode(context, episode, kept, draw=FIRST_CHECK + draw)
            for draw in range(CHECKING)
        )
    )
    return fmean(one.headline or 0.0 for one in played)


async def make_case(run: Run, name: str, episode: Episode, place: int, kind: str) -> Case | None:
    """Change a turn of an episode and blame what comes of it; None where it does not matter."""
    context, turn = run.context, episode.turns[place]
    random = Random(f"{episode.id}/{place}")
    text = (plant_fault if kind == "fault" else rephrase)(turn.text, random)
    if text is None or text == turn.text:
        return None
    changed = await play_changed(context, episode, turn, text)
    at = next((n for n, one in enumerate(changed.turns) if one.path == turn.path), None)
    if at is None or changed.error is not None:
        return None
    is_right = (changed.headline or 0.0) >= 0.5
    if is_right == (kind == "fault"):
        return None
    before, after = await asyncio.gather(
        measure_value(context, changed, at), measure_value(context, changed, at + 1)
    )
    matters = before - after >= 0.5 if kind == "fault" else abs(before - after) <= 0.1
    if not matters:
        return None
    result = await blame_episode(changed, partial(continue_episode, context))
    named = "" if result.culprit is None else result.culprit.turn
    return Case(name, kind, changed.turns[at].id, turn.agent, before, after, named, result.seconds)


async def play_changed(context: RolloutContext, episode: Episode, turn: Turn, text: str) -> Episode:
    """Return the episode in which the turn says the text, and those before it are kept."""
    recorded = {one.path: one for one in episode.turns}
    empty = Episode(
        f"{episode.id}*", episode.task, episode.attempt, episode.seed, split=episode.split
    )
    return await play_episode(context, empty, swap=Swap(turn.path, text), recorded=recorded)


async def collect(run: Run, name: str, wanted: dict[str, int]) -> list[Case]:
    """Make cases of a run's held-out tasks until there are enough of each kind."""
    asyncio.get_running_loop().set_task_factory(task_factory)
    await train_step.publish(run, list(run.learners))
    cases: list[Case] = []
    for number, task in enumerate(run.test * 20):
        missing = [k for k, n in wanted.items() if sum(c.kind == k for c in cases) < n]
        if not missing:
            break
        episode = await play(run.context, task, step="blame", split="test", attempt=number)
        if episode.error is not None or (episode.headline or 0.0) < 0.5:
            continue
        place = Random(number).randrange(len(episode.turns))
        for kind in missing:
            case = await make_case(run, name, episode, place, kind)
            if case is not None:
                cases.append(case)
    return cases


def report(cases: list[Case]) -> dict[str, Any]:
    """Return the shares that the issue is about, and how long an episode takes."""
    faults = [case for case in cases if case.kind == "fault"]
    harmless = [case for case in cases if case.kind == "harmless"]
    right = sum(case.named == case.turn for case in faults)
    blamed = sum(case.named == case.turn for case in harmless)
    return {
        "faults": len(faults),
        "right_turn_named": right / max(1, len(faults)),
        "harmless": len(harmless),
        "harmless_blamed": blamed / max(1, len(harmless)),
        "by_run": dict(Counter(f"{case.run} {case.kind}" for case in cases)),
        "median_seconds": median(case.seconds for case in cases),
        "most_seconds": max(case.seconds for case in cases),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--faults", type=int, default=200, help="and as many harmless changes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    share = -(-options.faults // len(options.runs))
    cases: list[Case] = []
    for path in options.runs:
        folder = RunFolder.existing(path)
        run = build(load_plan(folder.config, ["trainer.deterministic=false"]))
        started = time.monotonic()
        with running(run):
            with checkpoint.held(folder, checkpoint.LATEST) as saved:
                run.restore(saved)
            found = asyncio.run(collect(run, path.name, {"fault": share, "harmless": share}))
        cases += found
        print(path, f"{time.monotonic() - started:.0f} s", json.dumps(report(found)), flush=True)
    result = report(cases) | {"cases": [asdict(case) for case in cases]}
    print(json.dumps({name: value for name, value in result.items() if name != "cases"}, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
