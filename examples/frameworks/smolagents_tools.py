"""One agent with a tool, with smolagents, which writes calls into the text of its history.

In this folder: rolecall train tools.yaml workflow.function=smolagents_tools.py:run
"""

import os

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def run(task: dict) -> str:
    model = OpenAIServerModel(
        "solver", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    agent = ToolCallingAgent(tools=[add], model=model, max_steps=3, verbosity_level=0)
    return str(agent.run(task["prompt"]))
