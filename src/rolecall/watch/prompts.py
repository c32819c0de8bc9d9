"""Answers how the system and first messages of agents have changed during a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rolecall.core.json_types import Record
from rolecall.core.tags import visible
from rolecall.watch.links import link_turn
from rolecall.watch.models import AgentPrompts, Prompts, PromptVersion
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_table

COLUMNS = ("agent", "index", "question", "episode", "turn", "messages", "text")
MOST_STEPS = 40  # that are looked at: messages are long, and prompts seldom change
MOST_ROWS = 256  # of a step
MOST_VERSIONS = 20
QUESTION = "{question}"  # stands for the task in a first message; {solver} for what it said


@dataclass(slots=True)
class Version:
    """One text that an agent was told, and where."""

    text: str
    first: int
    last: int
    count: int
    example: tuple[int, str, str]  # step, episode, turn


@dataclass(slots=True)
class Drift:
    """All versions of what agents are told, by agent and role."""

    versions: dict[tuple[str, str], dict[str, Version]] = field(default_factory=dict)

    def add(self, step: int, row: Record, role: str, text: str) -> None:
        by_hash = self.versions.setdefault((row["agent"] or "", role), {})
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        version = by_hash.get(name)
        if version is None:
            example = step, row["episode"] or "", row["turn"] or ""
            by_hash[name] = Version(text, step, step, 1, example)
            return
        version.count += 1
        version.first, version.last = min(version.first, step), max(version.last, step)


def answer_prompts(run: WatchedRun) -> Prompts:
    """Return the versions of prompts in a run's steps; of a long run, in some at equal distances.

    A version's steps are the first and the last among those that were looked at.
    """
    steps = run.list_steps()
    chosen = spread_steps(steps, MOST_STEPS)
    drift = Drift()
    for step in chosen:
        for row, spoken in _first_turns(run, step):
            messages = row["messages"] or ()
            system = next((m for m in messages if m["role"] == "system"), None)
            first = next((m for m in messages if m["role"] != "system"), None)
            if system is not None:
                drift.add(step, row, "system", system["content"] or "")
            if first is not None:
                drift.add(step, row, "first", _make_template(first["content"] or "", row, spoken))
    agents = [
        _show_agent(run.name, agent, role, by_hash)
        for (agent, role), by_hash in sorted(drift.versions.items())
    ]
    return Prompts(run=run.name, agents=agents, searched_steps=len(chosen), of_steps=len(steps))


def spread_steps(steps: list[int], most: int) -> list[int]:
    """Return at most `most` steps at equal distances, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(number * (len(steps) - 1) / (most - 1))] for number in range(most)]


def _first_turns(run: WatchedRun, step: int) -> Iterator[tuple[Record, dict[str, str]]]:
    """Yield the first turn of each agent in a step's episodes, with what was said before it.

    The latter is {text: agent}.
    """
    table, _ = read_table(run.episode_file(step), COLUMNS)
    if table is None or not {"agent", "messages"} <= set(table.column_names):
        return
    spoken: dict[str | None, dict[str, str]] = {}
    for row in table.slice(0, MOST_ROWS).to_pylist():
        row = dict.fromkeys(COLUMNS) | row
        before = spoken.setdefault(row["episode"], {})
        if not row["index"]:
            yield row, before
        if words := visible(row["text"] or ""):
            before.setdefault(words, row["agent"] or "")


def _make_template(text: str, row: Record, spoken: Mapping[str, str]) -> str:
    """Return a message in which names stand for the task and for what teammates said."""
    names = {row["question"] or "": QUESTION} | {w: f"{{{agent}}}" for w, agent in spoken.items()}
    for words in sorted(filter(None, names), key=len, reverse=True):
        text = text.replace(words, names[words])
    return text


def _show_agent(run: str, agent: str, role: str, by_hash: dict[str, Version]) -> AgentPrompts:
    versions = sorted(by_hash.items(), key=lambda pair: (pair[1].first, -pair[1].count))
    shown = [
        PromptVersion(
            hash=name,
            steps=[version.first, version.last],
            count=version.count,
            text=version.text,
            example=link_turn(run, *version.example),
        )
        for name, version in versions[:MOST_VERSIONS]
    ]
    return AgentPrompts(
        agent=agent, role=role, versions=shown, more=max(0, len(versions) - MOST_VERSIONS)
    )
