"""Makes a rubric for the reward `coach` from the prompt template of MARTI's coaching fork (MAPPA).

There the values stand where the template names them. Here they stand in blocks of the coach's
message, so each name becomes that of its block; the form of the answer is asked for by ours.
"""

from __future__ import annotations

import re
from string import Formatter

FILES = 'the block "files available" (none, if it is missing)'
BLOCKS = {
    "problem": 'the block "task"',
    "task": 'the block "task"',
    "agent_role": "the agent to judge",
    "agent_name": "the agent to judge",
    "agent_input": 'the block "transcript"',
    "agent_output": 'the block "action"',
    "tool_observation": 'the blocks "tool output" (no tool was used, if there are none)',
    "all_tool_observations": 'the blocks "tool output" (no tool was used, if there are none)',
    "files_available": FILES,
    "files_from_previous_agents": FILES,
    "ground_truth_answer": 'the block "ground truth" (N/A, if it is missing)',
}
# The form of an answer: lines that begin with a key of it and leave its value open.
FORM = re.compile(r"^[ \t]*(?:PROCESS_SCORE|ANSWER_CORRECT)[ \t]*:.*(?:\n|\Z)", re.MULTILINE)
OURS = "(the lines that are asked for last)\n"


def translate_template(template: str) -> str:
    """Return the rules of a template; raises ValueError for one that cannot be kept."""
    parts = []
    try:
        fields = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"it is no template ({error}); double its braces") from None
    for text, name, form, conversion in fields:
        parts.append(text)
        if name is None:
            continue
        if name not in BLOCKS or form or conversion:
            raise ValueError(
                f"it names {{{name}}}, which the reward coach does not show; known: "
                f"{', '.join(BLOCKS)}"
            )
        parts.append(BLOCKS[name])
    rules = "".join(parts)
    kept = FORM.sub("", rules)
    lines = f"{kept.rstrip()}\n{OURS if kept != rules else ''}".strip().splitlines()
    return "\n".join(line.rstrip() for line in lines)  # so that YAML shows it line by line


def title(role: str) -> str:
    """Return a role as their templates call it: agent_data_engineer -> Data Engineer."""
    return role.removeprefix("agent_").replace("_", " ").title()
