"""Serves a trained team as one model, in the protocols of OpenAI, Anthropic and Google, and as an
agent in A2A.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rolecall.core.optional import needs
from rolecall.core.types import Episode, Task
from rolecall.gateway.dialects.base import refuse
from rolecall.gateway.dialects.reply import Reply, cut_at, digest
from rolecall.gateway.dialects.request import ForeignMessage, ForeignRequest, RequestError
from rolecall.gateway.routes import describe_refusal, make_app
from rolecall.rollout.episodes import PlaySettings
from rolecall.runs.trained_team import Team, TrainedTeam
from rolecall.serve.binding import answer_at, check_address
from rolecall.serve.guard import Rules, is_local

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI

PREFIXES = ("/v1", "/v1beta")
SAMPLING = ("temperature", "top_p", "top_k")  # that are set for all agents
SEED = "seed"
SHOWN = "show_conversation"  # field of a body that asks for what the agents said to one another
AGENT2AGENT = ("a2a", "sse_starlette")  # what its SDK needs to answer


def serve(
    run: Path,
    *,
    checkpoint_name: str = "latest",
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
) -> None:
    """Serve until interrupted. Raises ConfigError for a missing run, checkpoint or package, and
    for an address that others can reach without a token.
    """
    check_address(host, token=token)
    with Team.load(run, step=checkpoint_name) as team:
        served = ServedTeam(team, name=run.resolve().name)
        app = make_team_app(served, token=token, local=is_local(host))
        answer_at(host, port, app, token=token, access_log=False)


def make_team_app(served: ServedTeam, *, token: str, local: bool) -> FastAPI:
    """Return the application; it answers in A2A where its SDK is installed."""
    rules = Rules(token=token, local=local, busy=429, describe=describe_refusal)
    if not all(find_spec(module) for module in AGENT2AGENT):
        return make_app(lambda request: served, rules, PREFIXES)
    from rolecall.gateway.agent2agent import routes as agent2agent

    rules = replace(
        rules, open_paths=(agent2agent.CARD,), describe=agent2agent.describe_refusal_anywhere
    )
    app = make_app(lambda request: served, rules, PREFIXES)
    agent2agent.add_agent2agent(app, served, has_token=bool(token))
    return app


class ServedTeam:
    """Answers requests with episodes of a team, whatever model they name."""

    def __init__(self, team: TrainedTeam, *, name: str) -> None:
        self.team, self.name = team, name
        self._number = 0  # of requests without a seed
        self._places = asyncio.Semaphore(team.context.concurrency)

    @property
    def names(self) -> list[str]:
        """The name of the run."""
        return [self.name]

    async def answer(
        self, agent: str, request: ForeignRequest, *, body_digest: str = "", is_retry: bool = False
    ) -> Sequence[Reply]:
        """Return as many answers of the team as are asked for; raises RequestError."""
        settings = read_settings(request)
        task = Task(self._task_id(request), write_question(request))
        playing = (self._play(task, settings, attempt) for attempt in range(request.number))
        episodes = await asyncio.gather(*playing)
        return [make_team_reply(episode, request) for episode in episodes]

    async def count_tokens(self, agent: str, request: ForeignRequest) -> int:
        """Return the length of the question, by the tokenizer of the first agent that has one."""
        question = write_question(request)
        for one in self.team.context.agents.values():
            if (tokenizer := one.policy.tokenizer) is not None:
                return len(tokenizer(question, add_special_tokens=False)["input_ids"])
        raise RequestError(400, "the team's models are behind servers, which count themselves")

    async def _play(self, task: Task, settings: PlaySettings, attempt: int) -> Episode:
        async with self._places:
            try:
                return await self.team.play(task, settings=settings, attempt=attempt)
            except RuntimeError as error:
                raise RequestError(502, str(error)) from error

    def _task_id(self, request: ForeignRequest) -> str:
        """Return what decides the draws: the seed, or another number each time."""
        if SEED in request.unused:
            return f"seed-{request.unused[SEED]}"
        self._number += 1
        return f"request-{self._number}"


def read_settings(request: ForeignRequest) -> PlaySettings:
    """Return how agents are sampled; raises RequestError for what a team cannot do."""
    if request.tools:
        raise refuse("tools", "the agents have their own tools; leave them out")
    if request.schema is not None:
        raise refuse("response_format", "the team answers in its own form; ask for a text")
    if request.wants_logprobs:
        raise refuse("logprobs", "several agents make an answer; leave them out")
    for name in request.unused:
        if name not in (*SAMPLING, SEED):
            raise refuse(name, "it is not an option of a team; leave it out")
    return PlaySettings(
        sampling={name: request.unused[name] for name in SAMPLING if name in request.unused}
    )


def write_question(request: ForeignRequest) -> str:
    """Return the task of a team: the words of the user, or a whole conversation with names."""
    messages = request.messages
    if request.previous:
        raise RequestError(404, "responses are not kept; send the whole input",
                           code="previous_response_not_found")  # fmt: skip
    if request.instructions:
        messages = (ForeignMessage("system", request.instructions), *messages)
    if not messages or messages[-1].role != "user":
        raise RequestError(400, "the last message must be the user's", parameter="messages")
    if len(messages) == 1:
        return messages[0].text
    return "\n\n".join(
        message.text if message.role == "system" else f"[{message.role}]\n{message.text}"
        for message in messages
    )


def make_team_reply(episode: Episode, request: ForeignRequest) -> Reply:
    """Return the team's answer, on request with the conversation that led to it as its thought."""
    text, stop_text = cut_at(episode.answer, request.stop)
    return Reply(
        id=digest(episode.id, request.body),
        message=ForeignMessage("assistant", text),
        finish="length" if episode.is_truncated else "stop",
        thought=write_conversation(episode) if request.body.get(SHOWN) else "",
        stop_text=stop_text,
        prompt_tokens=sum(len(turn.prompt) for turn in episode.turns if turn.prompt is not None),
        sampled_tokens=sum(len(turn.tokens) for turn in episode.turns if turn.tokens is not None),
    )


def write_conversation(episode: Episode) -> str:
    """Return what the agents said, in the order of their turns."""
    return "\n\n".join(f"[{turn.agent}]\n{turn.text}" for turn in episode.turns if turn.chosen)
