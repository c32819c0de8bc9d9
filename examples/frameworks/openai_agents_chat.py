"""A solver and a verifier on one page, with the OpenAI Agents SDK, through chat completions.

In this folder: rolecall train team.yaml workflow.function=openai_agents_chat.py:run
"""

from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
set_default_openai_api("chat_completions")
solver = Agent(name="Solver", model="solver")
verifier = Agent(name="Verifier", model="verifier")


async def run(task: dict) -> str:
    solved = await Runner.run(solver, task["prompt"])
    shown = f"{task['prompt']}\n\n[solver]\n{solved.final_output}"
    verdict = (await Runner.run(verifier, shown)).final_output
    if "<verify>approve</verify>" in verdict:
        return solved.final_output
    told = {"role": "user", "content": f"[verifier]\n{verdict}"}
    return (await Runner.run(solver, [*solved.to_input_list(), told])).final_output
