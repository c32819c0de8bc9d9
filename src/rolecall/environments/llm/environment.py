"""Poses rows as tasks, in which a frozen LLM answers the agents.

It is a simulated user, a game master, a customer: whatever its system prompt says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.seeding import derive_seed
from rolecall.core.tags import find_tag, visible
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import gather, list_sources
from rolecall.environments.llm.chat import FrozenLlm, Said
from rolecall.environments.text.rows import text_tasks
from rolecall.environments.tool_use.environment import is_same_answer
from rolecall.grading.qa import targets

SCORE = re.compile(r"<score>\s*(\d+(?:\.\d+)?)\s*</score>")
SCORE_TRIES = 3  # requests for one score, as answers may be unreadable
OPENING = "Begin."
ORDER = "How well did the agents do?"


@dataclass(frozen=True, slots=True)
class Setting:
    """The prompts of the frozen LLM, and the rules by which an episode ends and is scored."""

    system: str  # who it is
    secret: str | None  # column of what it alone knows of a task
    done: str  # text in its reply that ends the episode; "" for none
    opens: bool  # it speaks first
    judges: bool  # it scores the episode, instead of a comparison with the answer
    scoring: str  # what it is asked then


class LlmEnvironment:
    """A frozen model behind an OpenAI-compatible address answers what agents say."""

    def __init__(
        self,
        model: str,
        url: str,
        system: str,
        train: str | list[str],
        test: str | list[str],
        question: str = "question",
        answer: str | None = "answer",
        secret: str | None = None,
        score: Literal["equal", "model"] = "equal",
        scoring: str | None = None,
        done: str = "[done]",
        opens: bool = False,
        key_env: str | None = None,
        temperature: float | None = None,
        max_tokens: int = 1024,
        concurrency: int = 16,
        request_s: float = 60.0,
        deadline_s: float = 180.0,
    ) -> None:
        """model: name of the model on that server.
        url: address of the server, as in http://localhost:8000/v1.
        system: who the model is to be.
        train, test: local files or hub data sets; one, or a list of several.
        question: column of what agents are told.
        answer: column of the reference answer; null where there is none.
        secret: column of what the frozen model alone knows.
        score: `equal` compares the agents' last `<answer>` with the row's; `model` asks the frozen
            model, which is shown the answer then and only then.
        scoring: with `score: model`, what it is asked at the end.
        done: text with which the model ends the dialogue; empty for none.
        opens: whether the model speaks first.
        key_env: environment variable of the server's key.
        temperature: of the model; by default the server's.
        max_tokens: most tokens of a reply.
        concurrency: requests under way at once.
        request_s: most seconds of one request.
        deadline_s: most seconds of a reply, repeated requests included.
        """
        if score == "equal" and answer is None:
            raise ValueError("score: equal needs the column of the answer")
        if score == "equal" and scoring is not None:
            raise ValueError("scoring has no effect: the frozen model does not score")
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        self.question, self.answer = question, answer
        judges = score == "model"
        self.setting = Setting(system, secret, done, opens, judges, scoring or ORDER)
        self.llm = FrozenLlm(
            model,
            url,
            key_env=key_env,
            temperature=temperature,
            max_tokens=max_tokens,
            concurrency=concurrency,
            request_s=request_s,
            deadline_s=deadline_s,
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """ "train" or "test". Raises ValueError for a missing source or a malformed row."""

        def check(task: Task) -> None:
            secret = self.setting.secret
            if secret is not None and not task.info.get(secret):
                raise ValueError(f"nothing in {secret!r}, which the frozen model is to know")

        def read(source: str) -> Sequence[Task]:
            path = locate(source, split=split)
            return text_tasks(path, question=self.question, answer=self.answer, check=check)

        return gather(self.sources[split], read=read)

    def open(self, task: Task, *, seed: int) -> World:
        return LlmWorld(task, self.setting, self.llm, seed=seed)

    async def close(self) -> None:
        await self.llm.close()


class LlmWorld(World):
    """One dialogue with the frozen LLM, which it counts in `llm_replies`."""

    def __init__(self, task: Task, setting: Setting, llm: FrozenLlm, *, seed: int) -> None:
        self.task, self.setting, self.llm, self.seed = task, setting, llm, seed
        self.speaking = asyncio.Lock()  # agents that speak at once are answered one by one
        lines = [setting.system, f"What the agents were told:\n{task.prompt}"]
        if setting.secret is not None:
            lines.append(f"What only you know:\n{task.info[setting.secret]}")
        if setting.done:
            lines.append(f"When the dialogue is over, end your message with {setting.done}")
        self.dialogue: list[Said] = [{"role": "system", "content": "\n\n".join(lines)}]

    async def fork(self) -> LlmWorld:
        fork = LlmWorld(self.task, self.setting, self.llm, seed=self.seed)
        fork.dialogue = list(self.dialogue)
        return fork

    async def reset(self) -> Observation:
        return await self._answer(OPENING) if self.setting.opens else Observation("")

    async def step(self, agent: str, action: str) -> Observation:
        """Raises InfrastructureError if the frozen LLM does not answer."""
        return await self._answer(f"[{agent}]\n{visible(action)}")

    async def score(self, episode: Episode) -> dict[str, float]:
        replies = [message for message in self.dialogue if message["role"] == "assistant"]
        episode.metrics["count/llm_replies"] = float(len(replies))
        if self.setting.judges:
            return {"team": await self._judged(episode)}
        answer = find_tag(episode.answer, "answer")
        if not answer or episode.metrics.get("truncated"):
            return {"team": 0.0}
        return {"team": float(is_same_answer(answer, targets(self.task.answer)))}

    async def _answer(self, said: str) -> Observation:
        async with self.speaking:
            messages = [*self.dialogue, {"role": "user", "content": said}]
            reply = await self.llm.reply(messages, seed=derive_seed(self.seed, len(messages)))
            self.dialogue = [*messages, {"role": "assistant", "content": reply}]
            key = str(self.dialogue[1:])
        done = bool(self.setting.done) and self.setting.done in reply
        text = reply.replace(self.setting.done, "").strip() if done else reply
        return Observation(text, key=key, done=done)

    async def _judged(self, episode: Episode) -> float:
        """Return the frozen LLM's score of the episode. Raises InfrastructureError if it states
        none.
        """
        parts = ["The dialogue is over.", f"The agents' last words:\n{visible(episode.answer)}"]
        if self.task.answer is not None:
            accepted = " or ".join(targets(self.task.answer))
            parts.append(f"The reference answer, which they never saw:\n{accepted}")
        parts.append(f"{self.setting.scoring}\nEnd with <score>x</score>, x from 0 to 1.")
        messages = [*self.dialogue, {"role": "user", "content": "\n\n".join(parts)}]
        for number in range(SCORE_TRIES):
            reply = await self.llm.reply(messages, seed=derive_seed(self.seed, "score", number))
            score = read_score(reply)
            if score is not None:
                return score
        raise InfrastructureError(f"no score in {SCORE_TRIES} replies; the last: {reply[-200:]!r}")


def read_score(reply: str) -> float | None:
    """Return the number of the one `<score>` that ends the reply; None for anything else.

    score_of("Good. <score>0.75</score>") -> 0.75; score_of("<score>8</score>") -> None
    """
    text = reply.strip()
    scores = SCORE.findall(text)
    if len(scores) != 1 or text.count("<score>") != 1 or not text.endswith("</score>"):
        return None
    value = float(scores[0])
    return value if value <= 1 else None
