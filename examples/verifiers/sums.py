"""An environment of verifiers: a solver adds numbers, and a verifier may ask it to try again."""

from collections.abc import Iterator

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.utils.score import extract_boxed_answer

__all__ = ["ChatHarness", "SumEnv", "SumTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(extract_boxed_answer(trace.last_reply, strict=True) == self.data.answer)


class SumTaskset(vf.Taskset[SumTask]):
    """Every sum of three small numbers."""

    def load(self) -> Iterator[SumTask]:
        for a in range(2, 21):
            for b in range(2, 10):
                for c in range(2, 10):
                    data = SumData(prompt=f"Compute {a}+{b}+{c}.", answer=str(a + b + c))
                    yield SumTask(data, self.config.task)


class SumEnvConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    verifier: vf.AgentConfig = vf.AgentConfig()


class SumEnv(vf.Env[SumEnvConfig]):
    """The solver answers once more if the verifier does not approve. Both get the same reward."""

    async def run(self, task: SumTask, agents: vf.Agents) -> None:
        async with agents.solver.interaction(task) as solver:
            solution = (await solver.turn()).last_reply
            shown = f"{task.data.prompt}\n\n[solver]\n{solution}"
            check = await agents.verifier.run(vf.Task(vf.TaskData(prompt=shown)))
            if "<verify>approve</verify>" not in check.last_reply:
                await solver.turn(f"[verifier]\n{check.last_reply}")

    async def finalize(self, task: SumTask, episode: vf.Episode) -> None:
        by_seat = {trace.agent.name: trace for trace in episode.traces}
        by_seat["verifier"].record_reward("correct", by_seat["solver"].reward)


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """Asks the model from this process, where `null` starts a program for each reply."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        if system:
            messages = [vf.SystemMessage(content=system), *messages]
        body = {"model": ctx.model, "messages": [message_to_wire(one) for one in messages]}
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(headers=headers, timeout=None) as client:
            response = await client.post(f"{endpoint}/chat/completions", json=body)
        response.raise_for_status()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
