"""A solver and a verifier on one page, with OpenAI's client.

In this folder: rolecall train team.yaml workflow.function=openai_sdk.py:run
"""

from openai import OpenAI

client = OpenAI()


def ask(agent: str, *messages: dict) -> str:
    reply = client.chat.completions.create(model=agent, messages=list(messages))
    return reply.choices[0].message.content


def run(task: dict) -> str:
    question = {"role": "user", "content": task["prompt"]}
    solution = ask("solver", question)
    shown = f"{task['prompt']}\n\n[solver]\n{solution}"
    verdict = ask("verifier", {"role": "user", "content": shown})
    if "<verify>approve</verify>" in verdict:
        return solution
    said = {"role": "assistant", "content": solution}
    return ask("solver", question, said, {"role": "user", "content": f"[verifier]\n{verdict}"})
