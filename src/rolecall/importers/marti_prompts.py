"""Makes system prompts of ours from the prompt templates of MARTI."""

from __future__ import annotations

import re

from rolecall.core.json_types import JsonValue
from rolecall.importers.keys import UNKNOWN

# What stands for the task, and for what teammates said: our workflows say these themselves.
VARIABLES = (
    "question",
    "problem",
    "prompt",
    "responses_str",
    "solution",
    "execution",
    "generator",
    "verifier",
    "refiner",
    "agent_problem_solver",
    "agent_code_executor",
    "agent_verifier",
)
NAMES = "|".join(VARIABLES)
WITH_DOLLAR = re.compile(rf"\\?\$\{{?({NAMES})\b\}}?")
WITH_BRACES = re.compile(rf"(?<!\{{)\{{({NAMES})\}}(?!\}})")
LONE = re.compile(r"\s*\[(?:question|problem|prompt)\]\s*")
# What stands in the code of their workflows, where a file gives no template, in words of ours.
BOXED = "Reason step by step, and put the final answer in \\boxed{}."
CODE = "Write the program that the task asks for, in one block of Python."
CRITIQUE = "Say what is right and what is wrong in the solution. Do not solve the problem yourself."
REVISION = "Write the solution anew, with what the critique says. Put the answer in \\boxed{}."
SUMMARY = "Weigh the solutions of the others, and give the final answer in \\boxed{}."
ROUNDS = (BOXED, "Read the others' answers above, then answer once more, in \\boxed{}.")


def read_template(template: JsonValue) -> str:
    """Return the words of a prompt, in which a variable stands as its name in brackets.

    A line that is the task alone is left to the workflow's messages:
    "$question\\nTask: $question\\nThink." -> "Task: [question]\\nThink."
    """
    text = "\n".join(map(str, template)) if isinstance(template, list) else str(template or "")
    text = text.replace(UNKNOWN, "")
    if WITH_DOLLAR.search(text):
        text = WITH_DOLLAR.sub(r"[\1]", text)
    elif WITH_BRACES.search(text):  # for str.format, which doubles all other braces
        text = WITH_BRACES.sub(r"[\1]", text).replace("{{", "{").replace("}}", "}")
    lines = [line.rstrip() for line in text.splitlines() if not LONE.fullmatch(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
