"""Pays what a reward model behind a URL says, in the wire format of OpenRLHF and MARTI."""

from __future__ import annotations

import json
import math
from typing import Literal
from urllib.parse import urlsplit

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode
from rolecall.grading.qa import targets
from rolecall.runtime.http import Http
from rolecall.runtime.retrying import GaveUpError, RefusedError, Retrying, RetryLimits, within
from rolecall.runtime.secret_texts import excerpt, remember_secrets_of_url, scrub

MOST_BYTES = 16 << 20  # of an answer


class RemoteModel:
    """Scores the team's answer, or each trained action, by a server that the config names.

    It is sent `{"query": [..], "prompts": [..], "labels": [..]}`, a text each for an episode's
    answer or for all of its actions: the prompt with what was said, the prompt alone, and the
    reference answer. It answers `{"rewards": [..]}`, as a `remote_rm_url` of OpenRLHF does. Prompts
    are texts without a chat template, as a server reads them in its own model's. A server that does
    not answer in time is an error of the episode, which is played again; one that refuses, or
    answers something else, ends the run.

    url: address that requests are posted to.
    scores: the team's answer to the task, as its reward, or each trained action, as its own.
    times: multiplier of the scores.
    timeout_s: most seconds of one request.
    deadline_s: most seconds of a request with its repetitions.

    Raises ValueError for a wrong address or time.
    """

    weighs_itself = True  # by `times`: the scores of actions are in the turns

    def __init__(
        self,
        url: str,
        scores: Literal["answer", "actions"] = "answer",
        times: float = 1.0,
        timeout_s: float = 180.0,
        deadline_s: float = 600.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"url: {url!r} is no URL; write e.g. http://127.0.0.1:5000/get_reward")
        limits = RetryLimits(deadline_s=deadline_s, request_s=timeout_s)
        remember_secrets_of_url(url)
        self.url, self.scores, self.times, self.timeout_s = url, scores, times, timeout_s
        self._retrying, self._http = Retrying(limits), Http(extra="search")

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Return the team's reward, or write that of each action on its turn."""
        if self.scores == "answer":
            prompt = episode.task.prompt
            [reward] = await self.score([(prompt, episode.answer)], episode)
            return {"team": reward}
        turns = [turn for turn in episode.turns if turn.trained and not turn.candidate_error]
        chats = [
            ("\n\n".join(message.content for message in turn.messages), turn.visible)
            for turn in turns
        ]
        rewards = await self.score(chats, episode) if turns else []
        for turn, reward in zip(turns, rewards, strict=True):
            turn.rewards["remote_model"] = reward
        return {}

    async def score(self, chats: list[tuple[str, str]], episode: Episode) -> list[float]:
        """Return the server's numbers for prompts and what was said to them, times `times`.

        Raises InfrastructureError where no answer comes in time, RunEndingError for a wrong one.
        """
        answer = episode.task.answer
        label = "" if answer is None else targets(answer)[0]
        body = {
            "query": [f"{prompt}\n\n{reply}" for prompt, reply in chats],
            "prompts": [prompt for prompt, _ in chats],
            "labels": [label] * len(chats),
        }

        async def post() -> bytes:
            async with within(self.timeout_s):
                return await self._http.ask("POST", self.url, body=body, most_bytes=MOST_BYTES)

        try:
            content = await self._retrying.call(post)
        except GaveUpError as error:
            raise InfrastructureError(scrub(f"reward model {self.url}: {error}")) from None
        except RefusedError as error:
            raise RunEndingError(scrub(f"rewards.remote_model.url: {self.url}: {error}")) from None
        return [self.times * reward for reward in self._read(content, len(chats))]

    def _read(self, content: bytes, count: int) -> list[float]:
        """Return the numbers of an answer; a number may be a list of itself alone."""
        try:
            rewards = json.loads(content)["rewards"]
            numbers = [float(one[0] if isinstance(one, list) else one) for one in rewards]
        except (ValueError, TypeError, KeyError, IndexError):
            numbers = []
        if len(numbers) != count or not all(map(math.isfinite, numbers)):
            raise RunEndingError(
                scrub(
                    f"rewards.remote_model.url: {self.url} answered {excerpt(content, 200)!r}, not "
                    f'{{"rewards": [...]}} with {count} numbers'
                )
            )
        return numbers
