"""Says what an agent answers: what its engine samples, or what a replay has of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import cast

import numpy as np

from rolecall.agents import chat_template
from rolecall.agents.agent import Agent, Policy
from rolecall.core.interfaces.engine import Answer, Completion, Question, Request, TextEngine
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Swap, Turn

Answers = Sequence[Completion | Answer]  # one for each turn of a call


@dataclass(frozen=True, slots=True)
class Answering:
    """The answers within one episode, which its seed and what is replayed of it decide."""

    episode: Episode
    call_seed: int
    swap: Swap | None  # what a replay changes
    recorded: dict[tuple[int, ...], Turn]  # turns of the episode that is replayed, by path
    tries_out: bool  # False: no other policy speaks for the agent's own (`cross_policy`)
    began: float = field(default_factory=time.monotonic)  # when the episode did

    async def say(
        self, agent: Agent, turns: list[Turn], path: tuple[int, ...], *, draw: str = ""
    ) -> Answers:
        """Return the answers of one call's turns: sampled, or as a replay has them.

        `draw`: decides what is sampled in place of the path, if it is not empty.
        """
        swap = self.swap
        swapped = swap is not None and swap.path == path
        if swap is not None and swapped and swap.text is not None:
            return _given(agent, swap.text, len(turns))
        recorded = [self.recorded.get(turn.path) for turn in turns]
        again = [old for old, turn in zip(recorded, turns, strict=True) if _repeats(old, turn)]
        if not swapped and len(again) == len(turns):
            return _again([old for old in again if old is not None])
        seed = derive_seed(self.call_seed, draw or path)
        policy = None
        if swap is not None and swapped:
            seed, policy = derive_seed(seed, "swap", swap.draw), swap.policy
        started = time.monotonic()
        answers = await self._sampled(agent, turns, path, seed, policy or agent.policy)
        ended = time.monotonic()
        for turn in turns:
            turn.began_s, turn.ended_s = started - self.began, ended - self.began
        took = f"call_s/{agent.name}"
        metrics = self.episode.metrics
        metrics[took] = metrics.get(took, 0.0) + ended - started
        return answers

    async def _sampled(
        self, agent: Agent, turns: list[Turn], path: tuple[int, ...], seed: int, policy: Policy
    ) -> Answers:
        episode = self.episode
        name, engine = f"{episode.id}/{'.'.join(map(str, path))}", policy.engine
        prompt = turns[0].prompt
        if prompt is None:
            # What has no tokenizer has a text engine; isinstance of a protocol takes 20 us.
            return await cast(TextEngine, engine).answer(
                Question(
                    id=name,
                    policy=policy.name,
                    messages=turns[0].messages,
                    sampling=agent.sampling,
                    seed=seed,
                    n=len(turns),
                )
            )
        cross = agent.cross_policy if self.tries_out else None
        if cross is not None and Random(derive_seed(seed, "cross")).random() < cross.share:
            for turn in turns:
                turn.sampled_by = cross.policy.name
            engine = cross.policy.engine
        return await engine.generate(
            Request(
                id=name,
                policy=turns[0].sampled_by or policy.name,
                prompt=prompt,
                sampling=agent.sampling,
                seed=seed,
                order=(episode.id, episode.attempt, path),
                n=len(turns),
                episode=episode.id,
            )
        )


def _given(agent: Agent, text: str, number: int) -> Answers:
    """Return a text that nobody sampled; where there are tokens, they end like an answer's."""
    tokenizer = agent.policy.tokenizer
    if tokenizer is None:
        return [Answer(text, "stop")] * number
    ids = np.append(chat_template.encode(tokenizer, text), tokenizer.eos_token_id).astype(np.int32)
    nothing = np.zeros(len(ids))
    one = Completion(ids, nothing.astype(np.float32), nothing.astype(np.int32), "stop")
    return [one] * number


def _repeats(old: Turn | None, turn: Turn) -> bool:
    """Return whether the agent is shown what it was shown in the old turn."""
    if old is None or old.agent != turn.agent:
        return False
    if turn.prompt is None or old.prompt is None:
        shown = [[(m.role, m.content, m.name) for m in one.messages] for one in (old, turn)]
        return turn.prompt is old.prompt and shown[0] == shown[1]
    return np.array_equal(old.prompt, turn.prompt)


def _again(turns: list[Turn]) -> Answers:
    """Return the answers of recorded turns, without what they cost then."""
    if turns[0].prompt is None:
        return [Answer(turn.text, turn.finish) for turn in turns]
    answers = []
    for turn in turns:
        assert turn.logprobs is not None
        assert turn.versions is not None
        answers.append(Completion(turn.ids[1], turn.logprobs, turn.versions, turn.finish))
    return answers
