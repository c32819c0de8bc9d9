"""A solver and a verifier on one page, with CAMEL's agents, which keep their conversations.

After `make build/camel`, in this folder: rolecall train team.yaml
workflow.function=camel_team.py:run workflow.python=../../build/camel/bin/python
"""

import os

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter


class CharacterCounter(BaseTokenCounter):
    """Counts characters: CAMEL's own counter downloads the vocabulary of another model."""

    def count_tokens_from_messages(self, messages: list[dict]) -> int:
        return sum(len(str(message["content"])) for message in messages)

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


def make_agent(name: str) -> ChatAgent:
    model = ModelFactory.create(
        ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
        model_type=name,
        url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        token_counter=CharacterCounter(),
    )
    return ChatAgent(model=model)


def run(task: dict) -> str:
    solver, verifier = make_agent("solver"), make_agent("verifier")
    solution = solver.step(task["prompt"]).msgs[0].content
    verdict = verifier.step(f"{task['prompt']}\n\n[solver]\n{solution}").msgs[0].content
    if "<verify>approve</verify>" in verdict:
        return solution
    return solver.step(f"[verifier]\n{verdict}").msgs[0].content
