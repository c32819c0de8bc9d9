"""Renders an action with its surroundings as the two messages that a coach is sent.

Whatever agents, tools, files or data sets wrote stands between marks that hold a random code.
Its authors cannot know the code, so nothing they write can end the block or pass for an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rolecall.core.json_types import JsonObject
from rolecall.core.tags import thinking
from rolecall.core.types import Task, Turn
from rolecall.rewards.coach.rubric import Rules
from rolecall.rewards.coach.sections import View
from rolecall.rewards.coach.wording import MEASURED, TRUTH, describe_form

Files = Mapping[str, int | bytes | str]  # name -> its size in bytes, or what it holds


@dataclass(slots=True)
class Action:
    """One turn and what a coach must know to judge it."""

    turn: Turn
    task: Task
    team: dict[str, str] = field(default_factory=dict)  # agent -> its role in a line, in order
    final: str = ""  # agent that delivers the team's answer
    files: Files = field(default_factory=dict)  # that the world held when it was taken
    truth: str = ""  # what the work is worth, as the world says; "": the task's answer is shown
    outcome: dict[str, float] = field(default_factory=dict)  # of a finished episode: hindsight
    answer: str = ""  # the team's, where that is judged and not the action


@dataclass(slots=True)
class Prompt:
    system: str
    user: str
    schema: JsonObject | None  # JSON schema of the answer; None: it is text


OURS = Rules()


def render(
    action: Action,
    *,
    nonce: str,
    view: View,
    ground_truth: bool,
    structured: bool,
    rules: Rules = OURS,
) -> Prompt:
    """Return the question about an action; `ground_truth` shows the task's reference answer."""
    turn = action.turn
    team = action.team or {turn.agent: ""}
    lines = [
        f"Request code: {nonce}",
        f"Agent to judge: {turn.agent}, turn {turn.index + 1} of this agent",
        "Team, in order:",
        *(f"- {name}{': ' if about else ''}{about}" for name, about in team.items()),
    ]
    if action.final:
        lines.append(f"The final answer is delivered by: {action.final}")
    parts = {"task": action.task.prompt, "transcript": _transcript(turn, view.transcript_chars)}
    parts |= _action(turn)
    for number, call in enumerate(turn.tools.calls, start=1):
        parts[f"tool call {number}"] = f"{call['name']}({call['arguments']})"
        parts[f"tool output {number}"] = cut(str(call["result"]), view.tool_chars)
    if action.files:
        parts["files available"] = "\n".join(map(_file, sorted(action.files.items())))
    if turn.tools.files_written:
        parts["files written by the action"] = "\n".join(map(str, turn.tools.files_written))
    if ground_truth:
        parts["ground truth"] = cut(_truth(action), view.tool_chars)
    if action.outcome:
        parts["outcome"] = "\n".join(f"{n}: {v:g}" for n, v in sorted(action.outcome.items()))
    blocks = [f"<<<{nonce} {name}\n{text}\n{nonce} end>>>" for name, text in parts.items()]
    truth = "" if not ground_truth else MEASURED if action.truth else TRUTH
    form = describe_form(rules.scale, structured=structured, ground_truth=ground_truth)
    return Prompt(
        system=rules.write(turn.agent, hindsight=bool(action.outcome)) + truth + form,
        user="\n\n".join(["\n".join(lines), *blocks]),
        schema=schema(rules.scale, ground_truth=ground_truth) if structured else None,
    )


def schema(scale: int, *, ground_truth: bool) -> JsonObject:
    """Return the schema of the answer. Bounds are not in it: the strict modes of some providers
    refuse them.
    """
    properties: JsonObject = {
        "reasoning": {"type": "string"},
        "process_score": {"type": "number", "description": f"0 to {scale}"},
        "request": {"type": "string", "description": "the request code"},
    }
    if ground_truth:
        properties["answer_correct"] = {"type": "integer", "enum": [0, 1]}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def cut(text: str, limit: int) -> str:
    """Both ends: a traceback stands at the end, what led to it at the start.

    cut("abcdefgh", 4) -> "ab\\n[... 4 characters left out ...]\\ngh"
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _transcript(turn: Turn, limit: int) -> str:
    return cut("\n\n".join(f"[{m.role}]\n{m.content}" for m in turn.messages), limit)


def _truth(action: Action) -> str:
    if action.truth:
        return action.truth
    if action.task.answer is None:
        raise ValueError(
            f"task {action.task.id} has no answer that a coach could be shown: take its agents out "
            "of view.ground_truth_roles, or give the world a `truth_text`"
        )
    return str(action.task.answer)


def _action(turn: Turn) -> dict[str, str]:
    thought = thinking(turn.text)
    parts = {"thinking of the action": thought} if thought else {}
    parts["action"] = turn.visible
    if turn.finish == "length":
        parts["state of the action"] = "truncated: true (the length limit ended it)"
    return parts


def _file(item: tuple[str, int | bytes | str]) -> str:
    name, held = item
    size = held if isinstance(held, int) else len(held.encode() if isinstance(held, str) else held)
    return f"{name} ({size} bytes)"
