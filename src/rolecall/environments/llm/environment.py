"""Poses rows as tasks, in which a frozen LLM answers the agents.

It is a simulated user, a game master, a customer: whatever its system prompt says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.chat_model import ChatModel
from rolecall.core.interfaces.engine import ContextFullError
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.seeding import derive_seed
from rolecall.core.tags import find_tag, visible
from rolecall.core.types import Episode, Message, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import gather, list_sources
from rolecall.environments.text.rows import text_tasks
from rolecall.environments.tool_use.environment import is_same_answer
from rolecall.grading.qa import targets
from rolecall.runtime.call_tree import Lock

SCORE = re.compile(r"<score>\s*(\d+(?:\.\d+)?)\s*</score>")
SCORE_TRIES = 3  # requests for one score, as answers may be unreadable
REPLY_TRIES = 3  # requests for one reply, as they may have no word beside a thought
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
    """A frozen policy of the config answers what agents say."""

    def __init__(
        self,
        policy: ChatModel,
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
    ) -> None:
        """policy: the frozen policy that answers.
        system: system prompt of the model.
        train, test: local files or hub data sets; one, or a list of several.
        question: column of what agents are told.
        answer: column of the reference answer; null where there is none.
        secret: column of what the frozen model alone knows.
        score: `equal` compares the agents' last `<answer>` with the row's; `model` asks the frozen
            model, which is shown the answer then and only then.
        scoring: the question that it is asked at the end, with `score: model`.
        done: text with which the model ends the dialogue; empty for none.
        opens: whether the model speaks first.
        """
        if score == "equal" and answer is None:
            raise ValueError("score: equal needs the column of the answer")
        if score == "equal" and scoring is not None:
            raise ValueError("scoring has no effect: the frozen model does not score")
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        self.question, self.answer = question, answer
        judges = score == "model"
        self.setting = Setting(system, secret, done, opens, judges, scoring or ORDER)
        self.llm = policy

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a malformed row.
        """

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


class LlmWorld(World):
    """One dialogue with the frozen LLM, which it counts in `llm_replies`."""

    def __init__(self, task: Task, setting: Setting, llm: ChatModel, *, seed: int) -> None:
        self.task, self.setting, self.llm, self.seed = task, setting, llm, seed
        self.speaking = Lock()  # agents that speak at once are answered one by one
        lines = [setting.system, f"What the agents were told:\n{task.prompt}"]
        if setting.secret is not None:
            lines.append(f"What only you know:\n{task.info[setting.secret]}")
        if setting.done:
            lines.append(f"When the dialogue is over, end your message with {setting.done}")
        self.dialogue = [Message("system", "\n\n".join(lines))]

    async def fork(self) -> LlmWorld:
        fork = LlmWorld(self.task, self.setting, self.llm, seed=self.seed)
        fork.dialogue = list(self.dialogue)
        return fork

    async def reset(self) -> Observation:
        return await self._answer(OPENING) if self.setting.opens else Observation("")

    async def step(self, agent: str, action: str) -> Observation:
        """Send an action to the frozen LLM; raises InfrastructureError if it does not answer."""
        return await self._answer(f"[{agent}]\n{visible(action)}")

    async def score(self, episode: Episode) -> dict[str, float]:
        replies = [message for message in self.dialogue if message.role == "assistant"]
        episode.metrics["count/llm_replies"] = float(len(replies))
        if self.setting.judges:
            return {"team": await self._judged(episode)}
        answer = find_tag(episode.answer, "answer")
        if not answer or episode.is_truncated:
            return {"team": 0.0}
        return {"team": float(is_same_answer(answer, targets(self.task.answer)))}

    async def _answer(self, said: str) -> Observation:
        async with self.speaking:
            messages = [*self.dialogue, Message("user", said)]
            reply = await self._reply(messages, len(messages))
            self.dialogue = [*messages, Message("assistant", reply)]
            key = str([(message.role, message.content) for message in self.dialogue[1:]])
        done = bool(self.setting.done) and self.setting.done in reply
        text = reply.replace(self.setting.done, "").strip() if done else reply
        return Observation(text, key=key, done=done)

    async def _reply(self, messages: list[Message], *place: str | int) -> str:
        """Return what the LLM says, without its thinking. `place` of the reply in the episode.

        Raises InfrastructureError where it says nothing, or not to its end.
        """
        for number in range(REPLY_TRIES):
            seed = derive_seed(self.seed, *place, *([number] if number else []))
            try:
                reply = await self.llm.reply(messages, seed=seed)
            except ContextFullError as error:  # of the LLM, not of an agent
                raise InfrastructureError(f"{self.llm.model}: {error}") from error
            if reply.truncated:
                raise InfrastructureError(
                    f"{self.llm.model}: the reply exceeds {reply.completion_tokens} tokens; write "
                    "a larger replies.max_tokens of its policy"
                )
            if text := visible(reply.text):
                return text
        raise InfrastructureError(
            f"{self.llm.model}: no word beside its thinking in {REPLY_TRIES} replies"
        )

    async def _judged(self, episode: Episode) -> float:
        """Return the frozen LLM's score of the episode. Raises InfrastructureError if it states
        none.
        """
        parts = ["The dialogue is over.", f"The agents' last words:\n{visible(episode.answer)}"]
        if self.task.answer is not None:
            accepted = " or ".join(targets(self.task.answer))
            parts.append(f"The reference answer, which they never saw:\n{accepted}")
        parts.append(f"{self.setting.scoring}\nEnd with <score>x</score>, x from 0 to 1.")
        messages = [*self.dialogue, Message("user", "\n\n".join(parts))]
        for number in range(SCORE_TRIES):
            reply = await self._reply(messages, "score", number)
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
