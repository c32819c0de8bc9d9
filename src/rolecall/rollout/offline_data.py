"""Reads groups of finished episodes from a file: data that nobody here sampled.

Preferences have `prompt`, `chosen` and `rejected`, as texts or as lists of chat messages; with
messages the prompt may be left out, and is then what both conversations begin with. Demonstrations
have `prompt` and `completion`, likewise, or `messages`, of which all that an assistant says is
imitated. `agent` says whose words they are; by default, those of the only trainable agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rolecall.agents import chat_template
from rolecall.agents.agent import Agent
from rolecall.agents.control_tokens import controls
from rolecall.rows.tasks import named_rows
from rolecall.tags import THINK_END, THINK_START
from rolecall.types import Episode, Group, Message, Task, Turn

OWN = (THINK_START, THINK_END, "<tool_call>", "</tool_call>")  # what an answer may be made of
SIDES = (("chosen", 1.0), ("rejected", 0.0))
Said = tuple[list[Message], str]  # what the agent was shown, and its words


def preferences(path: str | Path, agents: dict[str, Agent]) -> list[Group]:
    """One group of two episodes a row, with team rewards 1 and 0; tokenised once, here.

    Raises ValueError that names file and row of one without a pair.
    """
    groups = []
    for name, row, agent, place in _rows(path, agents):
        prompt, answers = _pair(row, place)
        groups.append(
            [
                _episode([(prompt, answer)], agent, name=name, attempt=attempt, reward=reward)
                for attempt, ((_, reward), answer) in enumerate(zip(SIDES, answers, strict=True))
            ]
        )
    return groups


def demonstrations(path: str | Path, agents: dict[str, Agent]) -> list[Group]:
    """One group of one episode a row, with team reward 1; tokenised once, here.

    Raises ValueError that names file and row of one in which the agent says nothing.
    """
    return [
        [_episode(_imitated(row, place), agent, name=name, attempt=0, reward=1.0)]
        for name, row, agent, place in _rows(path, agents)
    ]


def _rows(
    path: str | Path, agents: dict[str, Agent]
) -> Iterator[tuple[str, dict[str, Any], Agent, str]]:
    """Each row with its id, its agent, and its place as messages name it."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no data file {path}")
    trained = [agent for agent in agents.values() if agent.trainable]
    rows = list(named_rows(file))
    if not rows:
        raise ValueError(f"{file}: no rows")
    for name, place, row in rows:
        agent = row.get("agent") or (trained[0].name if len(trained) == 1 else None)
        if agent not in agents:
            known = ", ".join(agents)
            raise ValueError(f"{place}: no agent {agent!r}; set `agent` to one of: {known}")
        if agents[agent].policy.tokenizer is None:
            raise ValueError(f"{place}: nobody trains agent {agent!r}; leave the row out")
        yield name, row, agents[agent], place


def _episode(said: list[Said], agent: Agent, *, name: str, attempt: int, reward: float) -> Episode:
    """The conversation of a row, every turn of it the agent's."""
    policy = agent.policy
    assert policy.tokenizer is not None, "checked as the row was read"
    known = controls(policy.tokenizer)
    task = Task(name, said[0][0][-1].content, info={"source": "data"})
    episode = f"data:{name}:{attempt}"
    turns = []
    for index, (prompt, text) in enumerate(said):
        messages = [*agent.instructed([]), *prompt]
        words = chat_template.encode(policy.tokenizer, known.broken(text, own=OWN))
        ids = np.append(words, policy.tokenizer.eos_token_id)
        turns.append(
            Turn(
                id=f"{episode}/{index}",
                task=task.id,
                episode=episode,
                agent=agent.name,
                policy=policy.name,
                path=(index,),
                messages=messages,
                prompt=chat_template.prompt_ids(
                    policy.tokenizer, messages, options=policy.template
                ),
                tokens=ids.astype(np.int32),
                text=text,
                finish="stop",
                trained=agent.trainable,
                info={"source": "data"},
            )
        )
    return Episode(episode, task, attempt, 0, turns, {"team": reward}, answer=said[-1][1])


def _imitated(row: dict[str, Any], place: str) -> list[Said]:
    """All that the agent says in a demonstration, each time with what it was shown before."""
    if row.get("messages"):
        messages = _checked(row["messages"], place)
        spoken = [i for i, message in enumerate(messages) if message.role == "assistant"]
        said = [(messages[:i], messages[i].content) for i in spoken]
    elif row.get("prompt") and row.get("completion"):
        said = [(_checked(row["prompt"], place), _answer(row["completion"], place))]
    else:
        raise ValueError(
            f"{place}: no demonstration: the row has neither `messages` nor `prompt` and "
            "`completion`"
        )
    if not said or not all(text for _, text in said):
        raise ValueError(f"{place}: no demonstration: the assistant says nothing")
    for shown, _ in said:
        _check_asked(shown, place)
    return said


def _pair(row: dict[str, Any], place: str) -> tuple[list[Message], list[str]]:
    """The prompt of a preference, and the better and the worse answer."""
    missing = [side for side, _ in SIDES if not row.get(side)]
    if missing:
        raise ValueError(f"{place}: no pair: the row has no `{missing[0]}`")
    prompt, sides = row.get("prompt"), [row[side] for side, _ in SIDES]
    if prompt is None and isinstance(sides[0], list) and sides[0][:-1] == sides[1][:-1]:
        prompt = sides[0][:-1]
    messages = _checked(prompt or [], place)
    answers = [_answer(side, place) for side in sides]
    _check_asked(messages, place)
    if answers[0] == answers[1]:
        raise ValueError(f"{place}: no pair: chosen and rejected are the same")
    return messages, answers


def _answer(side: Any, place: str) -> str:
    """A text, or the last of some chat messages."""
    return side if isinstance(side, str) else _checked(side, place)[-1].content


def _checked(given: Any, place: str) -> list[Message]:
    """A user's text, or chat messages; of an assistant's, the thinking is marked as its own:
    templates leave it out of what was said earlier."""
    if isinstance(given, str):
        return [Message("user", given)]
    try:
        return [
            Message(
                message["role"],
                str(message["content"]),
                own=(THINK_START, THINK_END) if message["role"] == "assistant" else (),
            )
            for message in given
        ]
    except (TypeError, KeyError) as error:
        raise ValueError(f"{place}: neither texts nor lists of chat messages: {error!r}") from error


def _check_asked(shown: list[Message], place: str) -> None:
    if not shown or shown[-1].role not in ("user", "tool"):
        raise ValueError(f"{place}: the prompt does not end with a user message")
