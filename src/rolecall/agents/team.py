"""Lets a workflow call agents by name, and records each answer as a turn of the episode.

`await team.solver(task.prompt, solution, verdict)` makes messages of its arguments, messages
become tokens, an engine samples, and a `Turn` is recorded on the episode and returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from rolecall.agents import chat_template
from rolecall.agents.agent import Agent, Said, quoted_turns, spoken
from rolecall.agents.answering import Answering
from rolecall.agents.spoken_text import spoken_text
from rolecall.agents.tool_form import tool_form
from rolecall.core.interfaces.critic import Chooser, Judge
from rolecall.core.interfaces.engine import Answer, Completion, Sampling
from rolecall.core.interfaces.environment import Observation
from rolecall.core.interfaces.follower import Follower
from rolecall.core.interfaces.tool import Format, Tool
from rolecall.core.seeding import derive_seed
from rolecall.core.tags import encodable, has_one_thought
from rolecall.core.types import Episode, Ids, Message, Swap, ToolNotes, Turn
from rolecall.runtime import call_tree
from rolecall.tools.call_parsing import answers, read_calls
from rolecall.tools.use import OpenTools, ToolUse, use_tools


class Team:
    """The agents that a workflow sees, by name or role, bound to one episode."""

    def __init__(
        self,
        agents: dict[str, Agent],
        *,
        episode: Episode,
        call_seed: int,
        swap: Swap | None = None,
        recorded: dict[tuple[int, ...], Turn] | None = None,
        tries_out: bool = True,
        candidates: bool = True,
    ) -> None:
        self._agents = agents
        self._episode = episode
        self._answering = Answering(episode, call_seed, swap, recorded or {}, tries_out)
        self._candidates = candidates  # whether the workflow has declared that it draws some
        self.observation = Observation("")  # the newest that the whole team was shown
        self._num_observations = 0
        self._acted_on: dict[str, int] = {}  # by agent: the observation of its newest turn
        self._tools: OpenTools | None = None  # opened and closed with the episode's world
        self._followers: list[Follower] = []  # rewards that see each action

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

    @property
    def episode(self) -> Episode:
        """The episode that is being played."""
        return self._episode

    @property
    def step(self) -> int | None:
        """The step of the training; None in an evaluation."""
        return self._episode.step

    @property
    def tries_out(self) -> bool:
        """Return whether the team plays to learn; False in an evaluation."""
        return self._answering.tries_out

    @property
    def names(self) -> list[str]:
        return list(self._agents)

    def role(self, role: str) -> list[Member]:
        """Return all agents that play a role, in the order of the team."""
        return [Member(a, self) for a in self._agents.values() if a.role == role]

    def enter(self, tools: OpenTools) -> None:
        """Enter the episode's open world, with the tools of the agents that have some."""
        self._tools = tools

    def set_followers(self, followers: list[Follower]) -> None:
        """Set the followers that see each action from here on, and may have words on it for
        others.
        """
        self._followers = followers

    async def on_actions(self, turns: Sequence[Turn]) -> None:
        """Handle actions that are complete: the tools that they called have answered."""
        for turn in turns:
            for follower in self._followers:
                await follower.on_action(turn, self._answering.recorded.get(turn.path))

    async def add_words(self, agent: str, said: tuple[Said, ...]) -> tuple[Said, ...]:
        """Return the messages for an agent, with the followers' words behind each turn."""
        messages: list[Said] = []
        for entry in said:
            messages.append(entry)
            for turn in quoted_turns([entry]):
                words = [await follower.words_for(agent, turn) for follower in self._followers]
                messages += [text for text in words if text]
        return tuple(messages)

    def saw(self, observation: Observation) -> None:
        """Note the present state of the world; turns from here on carry it."""
        self.observation = observation
        self._num_observations += 1

    def state_for(self, agent: str) -> str:
        """Return the state of the world in which an agent acts now, as a hash.

        It is "" where no world shows anything, and where the agent has acted on the newest
        observation before: what it does then is another step of a conversation, not another visit
        to the state.
        """
        if self._acted_on.get(agent) == self._num_observations:
            return ""
        self._acted_on[agent] = self._num_observations
        return hash_observation(self.observation)

    def random(self, *key: str | int) -> Random:
        """Random numbers of this episode, the same for the same key: for sides and orders."""
        return Random(derive_seed(self._episode.seed, "workflow", *key))

    def choose(self, turn: Turn) -> Turn:
        """Play this candidate; its siblings stay as data. Raises ValueError for a second one."""
        siblings = [t for t in self._episode.turns if t.path[:-1] == turn.path[:-1]]
        if turn.candidate is None or any(t.chosen for t in siblings):
            raise ValueError(
                f"turn {turn.id} is no candidate, or another one was chosen already; "
                "choose one of the turns that `candidates` returned, once"
            )
        turn.chosen = True
        return turn


@dataclass(frozen=True, slots=True)
class Member:
    """One agent within one episode; calling it is what records a turn."""

    agent: Agent
    team: Team

    async def __call__(self, *said: Said) -> Turn:
        """Ask the agent. Raises ValueError if there is nothing to answer or no room for it.

        An agent with tools is asked again with what its calls came to, until it makes none: the
        last turn is returned.
        """
        if self.agent.tools is not None:
            return await self._work(said, self.agent.tools)
        if self.agent.chooser is not None:
            return await self._choose(said, self.agent.chooser)
        if self.agent.judge is not None:
            return await self._refine(said, self.agent.judge)
        [turn] = await self._ask(said, None)
        return turn

    def candidates(self, number: int) -> Callable[..., Awaitable[list[Turn]]]:
        """Return a call that samples several answers to one prompt and plays none of them, as in
        `await team.solver.candidates(4)(x)`.

        The workflow plays one with `team.choose(turn)`. An evaluation draws only one, because no
        world tells a team which of its answers is right. Raises ValueError for less than one, and
        where the workflow does not declare candidates.
        """
        if not self.team._candidates:
            raise ValueError(
                "the workflow draws candidates and does not declare it: write "
                "@workflow(candidates=True)"
            )
        if number < 1:
            raise ValueError(f"{number} candidates of {self.agent.name!r}: at least 1 is needed")

        async def ask(*said: Said) -> list[Turn]:
            return await self._ask(said, number if self.team.tries_out else 1)

        return ask

    async def reply(
        self,
        messages: list[Message],
        *,
        earlier: Sequence[Turn],
        tools: list[Tool],
        sampling: Sampling,
        draw: str,
    ) -> Turn:
        """Return what the agent says in a conversation that a program outside of rolecall keeps.

        Its own system prompt stands before that of the program. `earlier`: its own turns in
        `messages`; `tools`: those of the program, which calls them itself; `draw`: decides what is
        sampled, as calls of several programs come in any order. Raises ValueError for messages that
        the chat template does not take.
        """
        speaker = self._with_tools(tools, sampling)
        messages = _join_system(speaker.agent.system_messages(tools), messages)
        [turn] = await speaker._speak(messages, tuple(earlier), None, tools=tools, draw=draw)
        await self.team.on_actions([turn])
        return turn

    def count_tokens(self, messages: list[Message], *, tools: list[Tool]) -> int:
        """Return the length of the prompt that `reply` would make, before it is cut; 0 for a policy
        without tokens.

        Raises ValueError for messages that the chat template does not take.
        """
        speaker = self._with_tools(tools, self.agent.sampling)
        messages = _join_system(speaker.agent.system_messages(tools), messages)
        prompt = speaker._prompt(messages, tools)
        return 0 if prompt is None else len(prompt)

    def _with_tools(self, tools: list[Tool], sampling: Sampling) -> Member:
        """Return this member with the tools of a program in place of its own."""
        use = ToolUse((), format=self.tool_format) if tools else None
        return Member(replace(self.agent, tools=use, sampling=sampling), self.team)

    @property
    def tool_format(self) -> Format:
        """The form in which the agent calls tools that it has from a program."""
        tokenizer = self.agent.policy.tokenizer
        is_native = tokenizer is not None and not tool_form(tokenizer).problem
        return "native" if is_native else "tags"

    async def _choose(self, said: tuple[Said, ...], chooser: Chooser) -> Turn:
        turns = await self._ask(said, chooser.candidates)
        random = Random(derive_seed(self.team._answering.call_seed, "choose", turns[0].id))
        explores = self.team.tries_out
        return self.team.choose(await chooser(turns, explores=explores, random=random))

    async def _refine(self, said: tuple[Said, ...], judge: Judge) -> Turn:
        """Ask again while the judge refuses; refused turns stay as data, and nobody else is told
        of them.
        """
        [turn] = await self._ask(said, None)
        for _ in range(judge.max_refine):
            words = await judge(turn, self.team._episode)
            if not words:
                break
            turn.chosen = False
            [turn] = await self._ask((*said, turn, words), None)
        return turn

    async def _work(self, said: tuple[Said, ...], use: ToolUse) -> Turn:
        here = call_tree.current()
        with call_tree.enter_scope(here.next_path(), barrier=here.barrier):
            assert self.team._tools is not None, "an agent with tools spoke outside of a world"
            tools = await self.team._tools.offered_tools(use)
            messages = await self._told(said, tools)
            [turn] = await self._speak(messages, said, None, tools=tools)
            for _ in range(use.max_calls):
                results = await use_tools(turn, tools, use, episode=self.team._episode)
                if results:
                    self._penalise(turn)
                await self.team.on_actions([turn])
                if not results:
                    return turn
                called = tuple(call.name for call, _ in results) if use.format == "native" else ()
                messages = [*turn.messages, spoken(turn, called), *answers(results, use.format)]
                [turn] = await self._speak(messages, (turn,), None, tools=tools)
                seen = Observation("\n".join(text for _, text in results))
                turn.observation, turn.state = seen.text, hash_observation(seen)
            if read_calls(turn, use.format):
                self.team._episode.count("tool_limit")
            await self.team.on_actions([turn])
        return turn

    async def _ask(self, said: tuple[Said, ...], number: int | None) -> list[Turn]:
        turns = await self._speak(await self._told(said), said, number)
        await self.team.on_actions(turns)
        return turns

    async def _told(self, said: tuple[Said, ...], tools: list[Tool] | None = None) -> list[Message]:
        for entry in said:
            if isinstance(entry, Observation):
                self.team.saw(entry)
        said = await self.team.add_words(self.agent.name, said)
        mine = [t for t in self.team._episode.turns if t.agent == self.agent.name and t.chosen]
        return self.agent.messages(said, earlier=mine, tools=tools)

    async def _speak(
        self,
        messages: list[Message],
        said: tuple[Said, ...],
        number: int | None,
        *,
        tools: list[Tool] | None = None,
        draw: str = "",
    ) -> list[Turn]:
        """Sample and record what the agent answers to `messages`, which `said` led to."""
        here = call_tree.current()
        path, agent, episode = here.next_path(), self.agent, self.team._episode
        seen = [entry for entry in said if isinstance(entry, Observation)]
        state = self.team.state_for(agent.name)
        tools_here = self.team._tools
        # A coach judges an action by what there was when it was taken, not by the end.
        files = dict(tools_here.file_sizes) if tools_here is not None else {}
        with call_tree.enter_scope(path, barrier=here.barrier):
            prompt = self._truncate(self._prompt(messages, tools or []))
            turns = [
                Turn(
                    id=f"{episode.id}/{'.'.join(map(str, call_path))}",
                    index=self.count_turns_before(path),
                    task=episode.task.id,
                    episode=episode.id,
                    agent=agent.name,
                    policy=agent.policy.name,
                    path=call_path,
                    group="" if episode.step is None else str(episode.step),
                    parents=tuple(turn.id for turn in quoted_turns(said)),
                    messages=messages,
                    prompt=prompt,
                    state=state,
                    candidate=None if number is None else call_path[-1],
                    chosen=number is None,
                    temperature=agent.sampling.temperature,
                    trained=agent.trainable,
                    observation=seen[-1].text if seen else None,
                    tools=ToolNotes(files=files),
                )
                for call_path in ([path] if number is None else [(*path, k) for k in range(number)])
            ]
            answers = await self.team._answering.say(agent, turns, path, draw=draw)
            for turn, one in zip(turns, answers, strict=True):
                self._record(turn, one)
            episode.turns += turns
        return turns

    def count_turns_before(self, path: tuple[int, ...]) -> int:
        """Count this agent's played turns before that call, as far as they are known by now."""
        turns = self.team._episode.turns
        return sum(t.agent == self.agent.name and t.chosen and t.path < path for t in turns)

    def _prompt(self, messages: list[Message], tools: list[Tool]) -> Ids | None:
        """Return the prompt's tokens [P]; None if the policy's engine takes messages."""
        policy, use = self.agent.policy, self.agent.tools
        if policy.tokenizer is None:
            return None
        native = use is not None and use.format == "native"
        return chat_template.prompt_ids(
            policy.tokenizer,
            messages,
            options=policy.template,
            tools=[tool.schema for tool in tools] if native else None,
        )

    def _truncate(self, prompt: Ids | None) -> Ids | None:
        """Return the prompt [P] within the agent's limit, and count it if it was cut."""
        if prompt is None or self.agent.truncation is None:
            return prompt
        kept = self.agent.truncation.cut(prompt)
        if len(kept) < len(prompt):
            self.team._episode.count("prompts_cut")
        return kept

    def _record(self, turn: Turn, said: Completion | Answer) -> None:
        agent = self.agent
        turn.finish, turn.usage = said.finish, said.usage
        if isinstance(said, Answer):
            turn.text = encodable(said.text)
            if said.refused:
                self.team._episode.count("refused")
        else:
            turn.tokens, turn.logprobs, turn.versions = said.tokens, said.logprobs, said.versions
            tokenizer = agent.policy.tokenizer
            assert tokenizer is not None, "what has tokens has a tokenizer"
            turn.text = spoken_text(tokenizer, turn.ids[0], said.tokens)
        turn.valid = not agent.require_think_tags or has_one_thought(turn.text)
        if agent.tools is not None and read_calls(turn, agent.tools.format):
            return  # the rest of its form is judged as the calls are made
        if agent.parser is not None:
            is_read = turn.finish != "length" and agent.parser(turn) is not None
            turn.valid = turn.valid and is_read
        self._penalise(turn)

    def reject(self, turn: Turn) -> None:
        """Say of a turn of this member that its words were of no use: invalid, and penalised."""
        turn.valid = False
        self._penalise(turn)

    def _penalise(self, turn: Turn) -> None:
        if not turn.valid and self.agent.invalid_penalty:
            turn.rewards["invalid"] = -self.agent.invalid_penalty


def _join_system(own: list[Message], messages: list[Message]) -> list[Message]:
    """Put an agent's own system prompt before messages, which may begin with one."""
    if not own or not messages or messages[0].role != "system":
        return [*own, *messages]
    text = f"{own[0].content}\n\n{messages[0].content}"
    return [Message("system", text, own=own[0].own), *messages[1:]]


def hash_observation(shown: Observation) -> str:
    """Return a hash of what the world shows; "" where it shows nothing."""
    seen = shown.key or shown.text
    return f"{derive_seed(seen):016x}" if seen else ""
