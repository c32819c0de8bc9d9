"""A workflow's calls in, recorded turns out: who is in the team, and what a call of one says.

`await team.solver(task.prompt, solution, verdict)` makes messages of its arguments, messages
become ids, an engine samples, and a `Turn` is recorded on the episode and returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rolecall import chat, scope
from rolecall.chat import Tokenizer
from rolecall.core import Episode, Message, Turn
from rolecall.engines.base import Engine, Request, Sampling
from rolecall.seeds import seed_of

Said = str | Turn
Parser = Callable[[Turn], object | None]  # None: the turn does not have the form it should


@dataclass(slots=True)
class Policy:
    """Named weights and what is needed to speak with them."""

    name: str
    tokenizer: Tokenizer
    engine: Engine
    template: dict[str, object] = field(default_factory=dict)  # options of the chat template


@dataclass(slots=True)
class Agent:
    """One member of the team."""

    name: str
    policy: Policy
    role: str  # which of the workflow's roles it plays; several agents may play one
    system: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    parser: Parser | None = None
    memory: bool = False  # its earlier exchanges of the episode stand before each new call
    trainable: bool = True
    invalid_penalty: float = 0.0  # taken from the reward of a turn that the parser cannot read

    def messages(self, said: tuple[Said, ...], *, earlier: list[Turn]) -> list[Message]:
        """Texts and other agents' turns become user text, the agent's own turns assistant text.

        solver("2+2?", solver's turn "4", verifier's turn "no") ->
        user "2+2?", assistant "4", user "[verifier]\\nno".
        """
        messages = [Message("system", self.system)] if self.system else []
        if self.memory and earlier:
            messages = [*earlier[-1].messages, _spoken(earlier[-1])]
        for part in said:
            if isinstance(part, Turn) and part.agent == self.name:
                messages.append(_spoken(part))
                continue
            text = f"[{part.agent}]\n{part.visible}" if isinstance(part, Turn) else str(part)
            if messages and messages[-1].role == "user":
                messages[-1] = Message("user", f"{messages[-1].content}\n\n{text}")
            else:
                messages.append(Message("user", text))
        if not messages or messages[-1].role != "user":
            raise ValueError(f"agent {self.name!r} was called without anything to answer")
        return messages


def _spoken(turn: Turn) -> Message:
    return Message("assistant", turn.text, turn.tokens)


class Team:
    """What a workflow sees: agents by name or role, bound to one episode."""

    def __init__(self, agents: dict[str, Agent], *, episode: Episode, call_seed: int) -> None:
        self._agents = agents
        self._episode = episode
        self._call_seed = call_seed

    def __getattr__(self, name: str) -> Member:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Member:
        if name in self._agents:
            return Member(self._agents[name], self)
        players = self.role(name)
        if len(players) != 1:
            raise ValueError(f"the team has no agent {name!r} (it has: {', '.join(self._agents)})")
        return players[0]

    def role(self, role: str) -> list[Member]:
        """All agents that play a role, in the order of the team."""
        return [Member(a, self) for a in self._agents.values() if a.role == role]


@dataclass(frozen=True, slots=True)
class Member:
    """One agent within one episode; calling it is what records a turn."""

    agent: Agent
    team: Team

    async def __call__(self, *said: Said) -> Turn:
        """Ask the agent. Raises ValueError if there is nothing to answer or no room for it."""
        here = scope.current()
        path, agent, episode = here.next_path(), self.agent, self.team._episode
        with scope.entered(path, quiet=here.quiet):
            turn = Turn(
                id=f"{episode.id}/{'.'.join(map(str, path))}",
                task=episode.task.id,
                episode=episode.id,
                agent=agent.name,
                policy=agent.policy.name,
                path=path,
                parents=tuple(part.id for part in said if isinstance(part, Turn)),
                messages=agent.messages(
                    said, earlier=[t for t in episode.turns if t.agent == agent.name]
                ),
                temperature=agent.sampling.temperature,
                trained=agent.trainable,
            )
            await self._speak(turn)
            episode.turns.append(turn)
        return turn

    async def _speak(self, turn: Turn) -> None:
        agent, episode = self.agent, self.team._episode
        policy = agent.policy
        turn.prompt = chat.prompt_ids(policy.tokenizer, turn.messages, options=policy.template)
        [said] = await policy.engine.generate(
            Request(
                id=turn.id,
                policy=policy.name,
                prompt=turn.prompt,
                sampling=agent.sampling,
                seed=seed_of(self.team._call_seed, turn.path),
                order=(episode.task.id, episode.attempt, turn.path),
                episode=episode.id,
            )
        )
        turn.tokens, turn.logprobs, turn.versions = said.tokens, said.logprobs, said.versions
        turn.finish = said.finish
        turn.text = policy.tokenizer.decode(said.tokens, skip_special_tokens=True)
        if agent.parser is not None:
            turn.valid = turn.finish != "length" and agent.parser(turn) is not None
            if not turn.valid and agent.invalid_penalty:
                turn.rewards["invalid"] = -agent.invalid_penalty
