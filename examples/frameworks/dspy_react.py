"""One agent with a tool, with DSPy's ReAct, which asks anew with the whole trajectory each time.

In this folder: rolecall train tools.yaml workflow.function=dspy_react.py:run
"""

import os

import dspy
from dspy.utils.exceptions import AdapterParseError


def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


def run(task: dict) -> str:
    model = dspy.LM(
        "openai/solver",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        cache=False,
    )
    with dspy.context(lm=model):
        agent = dspy.ReAct("question -> answer", tools=[add], max_iters=3)
        try:
            return str(agent(question=task["prompt"]).answer)
        except AdapterParseError:  # the model did not write the fields: an answer of no worth
            return ""
