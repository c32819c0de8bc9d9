"""A file of preferences in, groups of finished episodes out: data that nobody here sampled.

Rows have `prompt`, `chosen` and `rejected`, as texts or as lists of chat messages; with messages
the prompt may be left out, and is then what both conversations begin with. `agent` says whose
words they are; by default, those of the only trainable agent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rolecall import chat
from rolecall.agents import Agent
from rolecall.core import Episode, Group, Message, Task, Turn
from rolecall.environments.row_files import read_rows
from rolecall.tags import THINK_END, THINK_START

SIDES = (("chosen", 1.0), ("rejected", 0.0))


def preferences(path: str | Path, agents: dict[str, Agent]) -> list[Group]:
    """One group of two episodes a row, with team rewards 1 and 0; tokenised once, here.

    Raises ValueError that names file and row of one without a pair.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no data file {path}")
    trained = [agent for agent in agents.values() if agent.trainable]
    groups = []
    for number, row in read_rows(file):
        place = f"{file}:{number}"
        name = row.get("agent", trained[0].name if len(trained) == 1 else None)
        if name not in agents:
            known = ", ".join(agents)
            raise ValueError(f"{place}: no agent {name!r}; set `agent` to one of: {known}")
        groups.append(_group(row, agents[name], number=number, place=place))
    if not groups:
        raise ValueError(f"{file}: no rows")
    return groups


def _group(row: dict[str, Any], agent: Agent, *, number: int, place: str) -> Group:
    missing = [side for side, _ in SIDES if not row.get(side)]
    if missing:
        raise ValueError(f"{place}: no pair: the row has no `{missing[0]}`")
    prompt, answers = _parted(row, place)
    if answers[0] == answers[1]:
        raise ValueError(f"{place}: no pair: chosen and rejected are the same")
    messages = [*agent.instructed([]), *prompt]
    ids = chat.prompt_ids(agent.policy.tokenizer, messages, options=agent.policy.template)
    task = Task(f"row-{number}", prompt[-1].content, info={"source": "data"})
    group = []
    for attempt, ((_, reward), text) in enumerate(zip(SIDES, answers, strict=True)):
        name = f"data:{task.id}:{attempt}"
        said = chat.encode(agent.policy.tokenizer, text)
        turn = Turn(
            id=f"{name}/0",
            task=task.id,
            episode=name,
            agent=agent.name,
            policy=agent.policy.name,
            path=(0,),
            messages=messages,
            prompt=ids,
            tokens=np.append(said, agent.policy.tokenizer.eos_token_id).astype(np.int32),
            text=text,
            finish="stop",
            trained=agent.trainable,
            info={"source": "data"},
        )
        group.append(Episode(name, task, attempt, 0, [turn], {"team": reward}, answer=text))
    return group


def _parted(row: dict[str, Any], place: str) -> tuple[list[Message], list[str]]:
    """The prompt and the two answers."""
    prompt, sides = row.get("prompt"), [row[side] for side, _ in SIDES]
    if all(isinstance(side, str) for side in sides) and isinstance(prompt, str):
        return [Message("user", prompt)], sides
    try:
        if prompt is None and sides[0][:-1] == sides[1][:-1]:
            prompt = sides[0][:-1]
        messages = [Message("user", prompt)] if isinstance(prompt, str) else _messages(prompt or [])
        answers = [side if isinstance(side, str) else str(side[-1]["content"]) for side in sides]
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{place}: neither texts nor lists of chat messages: {error!r}") from error
    if not messages or messages[-1].role != "user":
        raise ValueError(f"{place}: the prompt does not end with a user message")
    return messages, answers


def _messages(prompt: list[dict[str, str]]) -> list[Message]:
    """An assistant's thinking is its own: templates leave it out of what was said earlier."""
    return [
        Message(
            message["role"],
            message["content"],
            own=(THINK_START, THINK_END) if message["role"] == "assistant" else (),
        )
        for message in prompt
    ]
