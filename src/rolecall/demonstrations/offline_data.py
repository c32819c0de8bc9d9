"""Reads groups of finished episodes from a file: data that nobody here sampled.

Preferences have `prompt`, `chosen` and `rejected`, as texts or as lists of chat messages; with
messages the prompt may be left out, and is then what both conversations begin with, as with texts
of the form "\\n\\nHuman: ...\\n\\nAssistant: ..." (Anthropic's hh-rlhf). Demonstrations
have `prompt` and `completion`, likewise, or `messages`, of which all that an assistant says is
imitated; messages with `weight: 0` are not, and stay in what later ones were shown. Any other
weight, of a message or of a whole row, is how much it counts. What is
imitated may also be a list of parts with weights (`parts`). `agent` says whose words they are; by
default, those of the only trainable agent.

Rows that `data_set` made of episodes also hold tokens (`prompt_ids` with `completion_ids`, or with
`chosen_ids` and `rejected_ids`): these are trained as they were sampled, and no text is tokenised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rolecall.agents import chat_template
from rolecall.agents.agent import Agent
from rolecall.agents.chat_template import Tokenizer
from rolecall.agents.control_tokens import controls
from rolecall.agents.tool_form import tool_form
from rolecall.agents.written_turn import write_ids, write_turn
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Episode, Group, Ids, Message, Task, TrainingNotes, Turn
from rolecall.data.files import read_rows
from rolecall.data.tasks import named_rows
from rolecall.demonstrations.row_messages import (
    check_asked,
    has_tool_calls,
    read_answer,
    read_messages,
    read_transcript,
    read_weight,
    said_in,
)
from rolecall.demonstrations.weighted_spans import (
    OWN,
    WeightedSpan,
    is_parts,
    join_parts,
    read_spans,
    tokenise_parts,
)

SIDES = (("chosen", 1.0), ("rejected", 0.0))


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of an agent. Tokens are there where the row holds them as they were sampled."""

    shown: list[Message]
    text: str
    prompt: Ids | None = None  # [P]
    tokens: Ids | None = None  # [T]
    finish: str = "stop"
    imitated: bool = True  # False: it is only shown to later ones
    parts: tuple[WeightedSpan, ...] = ()  # of the text, where some of it is not imitated
    weight: float = 1.0  # how much it counts


@lru_cache(maxsize=16)
def fingerprint(tokenizer: Tokenizer) -> str:
    """Return a digest that is the same for tokenizers that have the same vocabulary."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(vocabulary.encode()).hexdigest()[:16]


def check_readable(path: str | Path) -> None:
    """Check that a file exists and has a row that can be read; raises ValueError otherwise."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no data file {path}")
    if next(read_rows(file), None) is None:
        raise ValueError(f"{file}: no rows")


def preferences(path: str | Path, agents: dict[str, Agent]) -> list[Group]:
    """Return one group of two episodes for each row, tokenised, with team rewards 1 and 0.

    Raises ValueError that names file and row of one without a pair.
    """
    groups = []
    for name, row, agent, where in _rows(path, agents):
        answers = _pair(row, where, agent)
        groups.append(
            [
                make_episode(
                    [answer], agent, place=where, name=name, attempt=attempt, reward=reward
                )
                for attempt, ((_, reward), answer) in enumerate(zip(SIDES, answers, strict=True))
            ]
        )
    return groups


def demonstrations(
    path: str | Path, agents: dict[str, Agent], *, in_parts: bool = True
) -> list[Group]:
    """Return one group of one episode for each row, tokenised, with team reward 1.

    Raises ValueError that names file and row of one in which the agent says nothing; without
    `in_parts`, also of one of which only parts are imitated.
    """
    groups = []
    for name, row, agent, where in _rows(path, agents):
        answers = _imitated(row, where, agent)
        if not in_parts and any(one.parts for one in answers):
            raise ValueError(
                f"{where}: only sft imitates parts of an answer; write a text, or remove the row"
            )
        if not in_parts and any(one.weight not in (0.0, 1.0) for one in answers):
            raise ValueError(f"{where}: weight: only sft weighs answers; write 0 or 1")
        episode = make_episode(answers, agent, place=where, name=name)
        if row.get("episode"):
            for turn in episode.turns:
                turn.info["episode"] = row["episode"]
        groups.append([episode])
    return groups


def experts(path: str | Path, agents: dict[str, Agent]) -> dict[str, list[Turn]]:
    """Read what each trained agent should say, at the temperature at which it speaks.

    Turns of one row, and of rows with one `episode`, have the same `Turn.episode`: they followed
    one another.
    Raises ValueError as `demonstrations` does.
    """
    turns: dict[str, list[Turn]] = {}
    for [episode] in demonstrations(path, agents, in_parts=False):
        for turn in episode.turns:
            if turn.trained:
                turn.temperature = agents[turn.agent].sampling.temperature
                turn.episode = str(turn.info.get("episode", turn.episode))
                turns.setdefault(turn.agent, []).append(turn)
    return turns


def check_shown(path: str | Path, agents: Collection[str], *, alone: str | None) -> None:
    """Check that a file has rows of every agent; raises ValueError otherwise.

    `alone`: the agent of rows without `agent`.
    """
    check_readable(path)
    shown = {row.get("agent") or alone for _, _, row in named_rows(Path(path).expanduser())}
    for agent in agents:
        if agent not in shown:
            raise ValueError(
                f"{path} shows nothing of what {agent!r} should say; add rows with `agent` "
                f"{agent!r}, or give it another algorithm (team.{agent}.algorithm)"
            )


def _rows(
    path: str | Path, agents: dict[str, Agent]
) -> Iterator[tuple[str, JsonObject, Agent, str]]:
    """Yield each row with its id, its agent, and its place as messages name it."""
    check_readable(path)
    file = Path(path).expanduser()
    trained = [agent for agent in agents.values() if agent.trainable]
    for name, where, row in named_rows(file):
        agent = row.get("agent") or (trained[0].name if len(trained) == 1 else None)
        if agent not in agents:
            names = ", ".join(agents)
            raise ValueError(f"{where}: no agent {agent!r}; set `agent` to one of: {names}")
        if agents[agent].policy.tokenizer is None:
            raise ValueError(f"{where}: nobody trains agent {agent!r}; leave the row out")
        _check_call_form(row, agents[agent], where)
        yield name, row, agents[agent], where


def _check_call_form(row: JsonObject, agent: Agent, place: str) -> None:
    """Check that an agent's template writes `tool_calls` in tags; raises ValueError otherwise.

    Rows that have `tool_calls` are written with the calls in tags.
    """
    if agent.tools is None or agent.tools.format != "native" or not has_tool_calls(row):
        return
    assert agent.policy.tokenizer is not None, "checked as the row was read"
    if not tool_form(agent.policy.tokenizer).writes_tags:
        raise ValueError(
            f"{place}: tool_calls: the chat template of {agent.policy.name!r} writes calls in a "
            "form of its own, and tool_calls become <tool_call> tags; write each call into "
            f"`content` as the model writes it, or set team.{agent.name}.tools.format: tags"
        )


def make_episode(
    said: list[Said],
    agent: Agent,
    *,
    place: str,
    name: str,
    attempt: int = 0,
    reward: float = 1.0,
) -> Episode:
    """Return the conversation of a row, every turn of it the agent's.

    `place`: the row, as messages name it. Raises ValueError where it cannot be tokenised.
    """
    task = Task(name, said[0].shown[-1].content, info={"source": "data"})
    episode = f"data:{name}:{attempt}"
    turns = [_turn(one, agent, task, episode, index, place=place) for index, one in enumerate(said)]
    return Episode(episode, task, attempt, 0, turns, {"team": reward}, answer=said[-1].text)


def _turn(said: Said, agent: Agent, task: Task, episode: str, index: int, *, place: str) -> Turn:
    """Return the turn of a row.

    A system message at the start of its prompt replaces the agent's own.
    """
    messages = said.shown
    if messages[0].role != "system":
        messages = [*agent.system_messages([]), *messages]
    policy, prompt, tokens, imitated = agent.policy, said.prompt, said.tokens, None
    assert policy.tokenizer is not None, "checked as the row was read"
    if prompt is None or tokens is None:
        tokenizer, options = policy.tokenizer, policy.template
        prompt = chat_template.prompt_ids(tokenizer, messages, options=options)
        if said.parts:
            words = join_parts(tokenizer, said.parts, place)
            written = write_turn(tokenizer, messages, words, options=options)
            tokens, imitated = tokenise_parts(tokenizer, said.parts, written, place)
        else:
            words = controls(tokenizer).broken(said.text, own=OWN)
            written = write_turn(tokenizer, messages, words, options=options)
            tokens = write_ids(tokenizer, prompt, written)
    if said.imitated and said.weight != 1.0:
        whole = np.ones(len(tokens), dtype=np.float32) if imitated is None else imitated
        imitated = whole * np.float32(said.weight)
    return Turn(
        id=f"{episode}/{index}",
        task=task.id,
        episode=episode,
        agent=agent.name,
        policy=policy.name,
        path=(index,),
        messages=messages,
        prompt=prompt,
        tokens=tokens,
        text=said.text,
        finish=said.finish,
        trained=agent.trainable and said.imitated,
        training=TrainingNotes(imitated=imitated),
        info={"source": "data"},
    )


def _imitated(row: JsonObject, place: str, agent: Agent) -> list[Said]:
    """Return all that the agent says in a demonstration, each time with what it was shown before.

    The weight of the row multiplies those of its messages.
    """
    weight = read_weight(row, place)
    if not weight:
        raise ValueError(f"{place}: weight: a row of weight 0 teaches nothing; leave it out")
    return [replace(one, weight=one.weight * weight) for one in _answers(row, place, agent)]


def _answers(row: JsonObject, place: str, agent: Agent) -> list[Said]:
    if row.get("parts") and not row.get("completion"):  # a column of Parquet has one type
        row = row | {"completion": row["parts"]}
    if _has_tokens(row, ("completion",), place, agent):
        if is_parts(row.get("completion")):
            raise ValueError(
                f"{place}: completion: parts say nothing of completion_ids; remove completion_ids, "
                "so that the parts are tokenised, or write a text"
            )
        finish = str(row.get("finish") or "stop")
        return [_as_sampled(row, "completion", place, finish=finish)]
    if row.get("messages"):
        messages = read_messages(row["messages"], place)
        spoken = [i for i, message in enumerate(messages) if message.role == "assistant"]
        weights = [read_weight(message, place) for message in row["messages"]]
        contents = [
            said_in(message, f"{place}: messages[{number}]") if number in spoken else None
            for number, message in enumerate(row["messages"])
        ]
        answers = [_said(messages[:i], contents[i], place, weight=weights[i]) for i in spoken]
    elif row.get("prompt") and row.get("completion"):
        answers = [
            _said(read_messages(row["prompt"], place), read_answer(row["completion"], place), place)
        ]
    else:
        raise ValueError(
            f"{place}: no demonstration: the row has neither `messages` nor `prompt` and "
            "`completion`"
        )
    if not answers or not all(one.text for one in answers):
        raise ValueError(f"{place}: no demonstration: the assistant says nothing")
    if not any(one.imitated for one in answers):
        raise ValueError(f"{place}: no demonstration: all that the assistant says has weight 0")
    for one in answers:
        check_asked(one.shown, place)
    return answers


def _said(shown: list[Message], content: Any, place: str, *, weight: float = 1.0) -> Said:
    """Join an answer's parts; where all are right, or all wrong, they need not be told apart."""
    if not is_parts(content):
        return Said(shown, str(content), imitated=weight > 0, weight=weight)
    parts = read_spans(content, place)
    right = [span.imitated for span in parts]
    return Said(
        shown,
        "".join(span.text for span in parts),
        imitated=weight > 0 and any(right),
        parts=() if all(right) or not any(right) else tuple(parts),
        weight=weight,
    )


def _pair(row: JsonObject, place: str, agent: Agent) -> list[Said]:
    """Return the better and the worse answer to the prompt of a preference."""
    if _has_tokens(row, [side for side, _ in SIDES], place, agent):
        answers = [_as_sampled(row, side, place) for side, _ in SIDES]
        if np.array_equal(*(answer.tokens for answer in answers)):  # type: ignore[arg-type]
            raise ValueError(f"{place}: no pair: chosen and rejected are the same")
        return answers
    missing = [side for side, _ in SIDES if not row.get(side)]
    if missing:
        raise ValueError(f"{place}: no pair: the row has no `{missing[0]}`")
    prompt, sides = row.get("prompt"), [read_transcript(row[side]) for side, _ in SIDES]
    if prompt is None and isinstance(sides[0], list) and sides[0][:-1] == sides[1][:-1]:
        prompt = sides[0][:-1]
    messages = read_messages(prompt or [], place)
    texts = [read_answer(side, place) for side in sides]
    if any(map(is_parts, texts)):
        raise ValueError(f"{place}: no pair: an answer in parts is a demonstration; write texts")
    check_asked(messages, place)
    if texts[0] == texts[1]:
        raise ValueError(f"{place}: no pair: chosen and rejected are the same")
    return [Said(messages, text) for text in texts]


def _has_tokens(row: JsonObject, sides: Iterable[str], place: str, agent: Agent) -> bool:
    """Return whether a row holds tokens. Raises ValueError where the agent's model cannot read
    them.
    """
    names = ("prompt_ids", *(f"{side}_ids" for side in sides))
    if any(row.get(name) is None for name in names):
        return False
    tokenizer = agent.policy.tokenizer
    assert tokenizer is not None, "checked as the row was read"
    if row.get("tokenizer") not in (None, fingerprint(tokenizer)):
        raise ValueError(
            f"{place}: its tokens are of another tokenizer than that of {agent.name!r}; collect "
            "again with this model, or remove prompt_ids so that the texts are read"
        )
    for name in names:
        ids = row[name]
        is_valid = isinstance(ids, list) and all(type(i) is int for i in ids)
        if not is_valid or not ids or not 0 <= min(ids) <= max(ids) < len(tokenizer):
            raise ValueError(f"{place}: {name} is no list of tokens below {len(tokenizer)}")
    return True


def _as_sampled(row: JsonObject, side: str, place: str, *, finish: str = "stop") -> Said:
    shown = read_messages(row.get("prompt") or [], place) or [Message("user", "")]
    prompt, tokens = (np.array(row[name], dtype=np.int32) for name in ("prompt_ids", f"{side}_ids"))
    return Said(shown, str(row.get(side) or ""), prompt, tokens, finish)
