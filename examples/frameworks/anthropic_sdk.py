"""A solver and a verifier on one page, with Anthropic's client.

In this folder: rolecall train team.yaml workflow.function=anthropic_sdk.py:run
"""

from anthropic import Anthropic

client = Anthropic()


def ask(agent: str, *messages: dict) -> str:
    reply = client.messages.create(model=agent, max_tokens=64, messages=list(messages))
    return reply.content[-1].text


def run(task: dict) -> str:
    question = {"role": "user", "content": task["prompt"]}
    solution = ask("solver", question)
    shown = f"{task['prompt']}\n\n[solver]\n{solution}"
    verdict = ask("verifier", {"role": "user", "content": shown})
    if "<verify>approve</verify>" in verdict:
        return solution
    said = {"role": "assistant", "content": solution}
    return ask("solver", question, said, {"role": "user", "content": f"[verifier]\n{verdict}"})
