"""A solver and a verifier on one page, with AutoGen's agents.

In this folder: rolecall train team.yaml workflow.function=autogen_team.py:run
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    multiple_system_messages=False,
    family=ModelFamily.UNKNOWN,
)


def make_agent(name: str) -> AssistantAgent:
    client = OpenAIChatCompletionClient(model=name, model_info=INFO)
    return AssistantAgent(name, client, system_message=None)


async def ask(agent: AssistantAgent, text: str) -> str:
    result = await agent.run(task=TextMessage(content=text, source="user"))
    return result.messages[-1].content


async def play(task: str) -> str:
    solver, verifier = make_agent("solver"), make_agent("verifier")
    solution = await ask(solver, task)
    verdict = await ask(verifier, f"{task}\n\n[solver]\n{solution}")
    if "<verify>approve</verify>" in verdict:
        return solution
    return await ask(solver, f"[verifier]\n{verdict}")


def run(task: dict) -> str:
    return asyncio.run(play(task["prompt"]))
