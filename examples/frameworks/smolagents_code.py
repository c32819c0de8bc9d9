"""One agent that writes code, with smolagents.

In this folder: rolecall train tools.yaml workflow.function=smolagents_code.py:run
"""

import os

from smolagents import CodeAgent, OpenAIServerModel


def run(task: dict) -> str:
    model = OpenAIServerModel(
        "solver", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    agent = CodeAgent(tools=[], model=model, max_steps=3, verbosity_level=0)
    return str(agent.run(task["prompt"]))
