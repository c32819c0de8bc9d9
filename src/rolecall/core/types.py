"""The four data types (Task, Turn, Episode, Batch), and the functions that compare turns.

Legend: P = prompt tokens, T = sampled tokens, N = tokens in one packed batch. Arrays are numpy,
int32 for tokens and float32 for numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rolecall.core.credit import CreditTerm
from rolecall.core.tags import encodable, find_tag, visible

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]

NO_PARENT = -1  # Batch.parent of a token that nothing in the batch predicts


@dataclass(frozen=True, slots=True)
class Task:
    """One problem that a team works on."""

    id: str  # unique within its data source
    prompt: str  # what the team is told
    answer: Any = None  # reference answer; a list means that any element is correct
    info: dict[str, Any] = field(default_factory=dict)  # `source` and whatever the row held

    def __post_init__(self) -> None:
        """Replace what UTF-8 cannot hold by `?`, also in an environment of the user's own."""
        for name in ("id", "prompt"):
            text = getattr(self, name)
            if isinstance(text, str) and (readable := encodable(text)) != text:
                object.__setattr__(self, name, readable)

    @property
    def source(self) -> str:
        """The data set or generator that it is of."""
        return str(self.info.get("source", ""))

    @property
    def family(self) -> str:
        """The part of a mixed environment that it is of; "" where nothing is mixed."""
        return str(self.info.get("family", ""))


@dataclass(slots=True)
class Message:
    """One chat message. `tokens` holds sampled tokens that stand in the prompt verbatim."""

    role: str  # system | user | assistant | tool
    content: str
    tokens: Ids | None = None  # [T] only for an agent's own earlier turn
    name: str = ""  # of the tool that says it
    own: tuple[str, ...] = ()  # tags of the content that we wrote: they are not broken up
    called: tuple[str, ...] = ()  # names of the tools whose results follow, in native form
    tail: str = ""  # what somebody else added to the words of `tokens`
    calls: tuple[tuple[str, str], ...] = ()  # of tools, with arguments as JSON

    @property
    def text(self) -> str:
        """The content, with a line for each call of a tool behind it."""
        lines = [f"{name}({arguments})" for name, arguments in self.calls]
        return "\n".join([*([self.content] if self.content else []), *lines])


@dataclass(frozen=True, slots=True)
class Utility:
    """Holds what the critic of VDN or QMIX says of a turn."""

    q: float  # of what it said
    v: float  # of what it could say
    gain: float  # mixed q less the same with the turn's v in place of its q
    mixed_q: float  # of all turns of its joint step
    mixed_v: float


@dataclass(slots=True)
class CoachNote:
    """Holds what a coach said of a turn, and what asking cost."""

    score: float  # 0..scale, after bounds
    reasoning: str
    usage: dict[str, Any]  # a `rewards.coach.scores.Usage`
    answer_correct: bool | None = None  # only where the coach was shown the reference answer
    cached: bool = False
    hindsight: CoachNote | None = None  # a second score, given with the outcome in view
    scale: float = 10.0
    uncapped: float | None = None  # what the coach gave, where a bound lowered it
    cap: str = ""  # why it was lowered

    @property
    def final(self) -> CoachNote:
        """The one that counts."""
        return self.hindsight or self


@dataclass(slots=True)
class CoachNotes:
    """Holds the coach's note on a turn, and what asking for it came to."""

    note: CoachNote | None = None
    error: str = ""  # why there is no note
    requests: int | None = None  # None: nobody asked for a score


@dataclass(slots=True)
class ToolNotes:
    """Holds the tools that a turn called and the files that it had."""

    calls: list[dict[str, Any]] = field(default_factory=list)  # with their results
    files: dict[str, int] = field(default_factory=dict)  # name -> bytes, before its calls
    files_written: list[str] = field(default_factory=list)  # by its calls


@dataclass(slots=True, eq=False)
class TrainingNotes:
    """Holds what learners, critics and data sets note on a turn for its credit and its loss."""

    prox_logprobs: Floats | None = None  # [T] under the learner when its update began
    new_logprobs: Floats | None = None  # [T] under the learner after its update
    ref_logprobs: Floats | None = None  # [T] under the policy's reference
    values: Floats | None = None  # [T] a critic's value before each sampled token
    team_values: dict[str, float] | None = None  # a team critic's, by agent of the joint step
    utility: Utility | None = None  # from the critic of VDN or QMIX
    inner_reward: float | None = None  # from a discriminator; the world does not pay it
    estimate: float | None = None  # what a critic adds to the return; nobody earns it
    preference: float | None = None  # the score by which answers are paired
    replayed: float | None = None  # mean return of the replays in which it says something else
    replay_error: str = ""  # why there is no such mean
    imitated: Floats | None = None  # [T] 0 where a data set marks a token as wrong; None: nowhere
    credit: tuple[CreditTerm, ...] | None = None  # how `advantages` came about; None: they did not


@dataclass(slots=True, eq=False)
class Turn:
    """One LLM call of one agent: tokens in, tokens out, and later what they earned."""

    id: str  # episode id + "/" + path, e.g. "3:add-17:0/0.1"
    task: str  # Task.id
    episode: str  # Episode.id
    agent: str
    policy: str
    path: tuple[int, ...]  # place of the call in the episode's tree of calls
    group: str = ""  # the step in which its attempt began; attempts of others are not compared
    index: int = 0  # this agent's earlier played turns in the episode
    parents: tuple[str, ...] = ()  # ids of the turns that were passed to the call
    messages: list[Message] = field(default_factory=list)  # what the agent was shown
    prompt: Ids | None = None  # [P]; None for an API agent: never trained
    tokens: Ids | None = None  # [T] sampled tokens, the end token included
    logprobs: Floats | None = None  # [T] log-prob of each sampled token under the sampler
    versions: Ids | None = None  # [T] policy version that sampled each token
    text: str = ""  # the sampled text, less special tokens; <think> before what began inside it
    finish: str = ""  # stop | length
    state: str = ""  # hash of the world's observation
    candidate: int | None = None  # number among those sampled by one call; its last path entry
    chosen: bool = True  # False for a candidate that was not played
    trained: bool = True  # False for a frozen agent: context for others, in no batch
    valid: bool = True  # False when the agent's parser found nothing to read
    rewards: dict[str, float] = field(default_factory=dict)  # from penalties, a coach, functions
    world_rewards: dict[str, float] = field(default_factory=dict)  # from the environment
    payments: dict[str, float] = field(default_factory=dict)  # from the workflow
    temperature: float = 1.0  # the sampling temperature of `logprobs`
    advantages: Floats | None = None  # [T]
    returns: Floats | None = None  # [T]
    weight: float = 1.0  # multiplier of its policy loss
    observation: str | None = None  # the text of the world that it was shown
    verdict: str = ""  # the word that its parser read, e.g. approve
    candidate_error: str = ""  # the error of its fork of the world
    sampled_by: str = ""  # the policy with earlier weights that sampled it, if any
    seat: str = ""  # the seat that it played, if agents swap seats
    usage: dict[str, float] | None = None  # a server's tokens and cost
    began_s: float | None = None  # seconds from the episode's start to the call
    ended_s: float | None = None  # to its answer; None: a replay did not ask for it again
    training: TrainingNotes = field(default_factory=TrainingNotes)
    tools: ToolNotes = field(default_factory=ToolNotes)
    coach: CoachNotes = field(default_factory=CoachNotes)
    info: dict[str, Any] = field(default_factory=dict)  # notes of worlds, workflows and rewards

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name the notes in which an attribute of earlier versions stands now."""
            if name in MOVED_TO_NOTES:
                raise AttributeError(f"Turn.{name} is now Turn.{MOVED_TO_NOTES[name]}")
            raise AttributeError(f"'Turn' object has no attribute {name!r}")

    @property
    def ids(self) -> tuple[Ids, Ids]:
        """Prompt [P] and sampled tokens [T] of a turn that has them."""
        assert self.prompt is not None, f"turn {self.id} has no tokens"
        assert self.tokens is not None, f"turn {self.id} has no tokens"
        return self.prompt, self.tokens

    def pay(self, name: str, amount: float) -> None:
        """Set what this turn earned in a workflow; it replaces the agent's share of `correct`."""
        self.payments[name] = amount

    @property
    def paid(self) -> float | None:
        """The amount the workflow paid for this turn itself, if it did: the turn's own outcome."""
        return sum(self.payments.values()) if self.payments else None

    @property
    def call_path(self) -> tuple[int, ...]:
        """The path of the call that it answers, which all candidates of the call share."""
        return self.path if self.candidate is None else self.path[:-1]

    @property
    def visible(self) -> str:
        """The text without its thinking: what teammates, parsers and scorers read."""
        return visible(self.text)

    def reset_credit(self) -> None:
        """Begin to give credit anew: an advantage of 0 on each token, and weight 1."""
        self.advantages, self.weight, self.training.credit = spread(self, 0.0), 1.0, ()

    def give_credit(self, term: CreditTerm) -> None:
        """Add a term of the credit: it changes `advantages`, and is kept to explain them."""
        before = spread(self, 0.0) if self.advantages is None else self.advantages
        self.training.credit = (*(self.training.credit or ()), term)
        self.advantages = term.compute(before, self.training)

    def tag(self, name: str) -> str | None:
        """Return the content of the last complete `<name>...</name>` after thinking, stripped and
        in lower case; None if there is none or the turn was cut by its length limit.
        """
        content = None if self.finish == "length" else find_tag(self.text, name)
        return None if content is None else content.lower()

    @property
    def score(self) -> float:
        """r_t: all that this action earned itself; neither inner rewards nor estimates."""
        earned = (self.rewards, self.world_rewards, self.payments)
        return float(sum(value for rewards in earned for value in rewards.values()))

    @property
    def is_scored(self) -> bool:
        """True if this action earned anything itself."""
        return bool(self.rewards or self.world_rewards or self.payments)

    @property
    def all_rewards(self) -> dict[str, float]:
        """All that it earned, and what discriminators and critics say of it, by name."""
        notes = self.training
        estimates = {"discriminator": notes.inner_reward, "advantage": notes.estimate}
        named = {name: value for name, value in estimates.items() if value is not None}
        for rewards in (self.rewards, self.world_rewards, self.payments):
            for name, value in rewards.items():
                named[name] = named.get(name, 0.0) + value
        return named

    def __str__(self) -> str:
        return self.visible


MOVED_TO_NOTES = {
    **{name: f"training.{name}" for name in TrainingNotes.__slots__},
    **{name: f"tools.{name}" for name in ToolNotes.__slots__},
    "coach_error": "coach.error",
    "coach_requests": "coach.requests",
}


@dataclass(slots=True, eq=False)
class Episode:
    """One attempt of the team at one task."""

    id: str  # "step:task:attempt", plus ":rN" for the N-th repeat after an error
    task: Task
    attempt: int  # member of the group, 0..K-1
    seed: int  # seed of the worlds and shuffles of this attempt
    turns: list[Turn] = field(default_factory=list)  # ordered by path once the episode is over
    rewards: dict[str, float] = field(default_factory=dict)  # agent name or "team" -> outcome
    scores: dict[str, float] = field(default_factory=dict)  # the same, from the environment
    judged_score: float | None = None  # shown, and paid to nobody
    is_truncated: bool = False  # a length limit cut the answer, or the talk outgrew a context
    is_mistake: bool = False  # the code is wrong: another try would raise the same error
    metrics: dict[str, float] = field(default_factory=dict)  # measurements, e.g. wall_s
    answer: str = ""  # what the workflow returned
    error: str | None = None  # "Type: message"; an errored episode is never trained on
    step: int | None = None  # training step; None in an evaluation
    split: str = "train"  # split of the task
    counted_agent: str | None = None  # agent whose own score counts; None: the team's

    def count(self, event: str) -> None:
        """Count an event, which `rollout/EVENT` adds up over a step's episodes."""
        name = f"count/{event}"
        self.metrics[name] = self.metrics.get(name, 0.0) + 1.0

    @property
    def headline(self) -> float | None:
        """The score that counts, in training, evaluations, comparisons and what is shown.

        It is the own score of `counted_agent` where there is one, else the team's.
        """
        return self.agent_score(self.counted_agent)

    def agent_score(self, agent: str | None) -> float | None:
        """Return an agent's own score if it has one, else the team's."""
        own = None if agent is None else self.scores.get(agent)
        return self.team_score if own is None else own

    @property
    def team_score(self) -> float | None:
        """The team's score.

        It is `judged_score` where nobody is paid for it (was the judge right?), else the world's
        score of the team, else the mean of the agents' own.
        """
        if self.judged_score is not None:
            return self.judged_score
        own = [score for owner, score in self.scores.items() if owner != "team"]
        return self.scores.get("team", sum(own) / len(own) if own else None)

    @property
    def all_metrics(self) -> dict[str, float]:
        """Scores and measurements by name, as trackers and coaches read them."""
        scores = {
            "score" if owner == "team" else f"score/{owner}": score
            for owner, score in self.scores.items()
        }
        if self.judged_score is not None:
            scores["headline"] = self.judged_score
        if self.is_truncated:
            scores["truncated"] = 1.0
        return scores | self.metrics

    def owner(self, agent: str) -> str:
        """Whose outcome an agent's turns carry: its own entry if it has one, else the team's."""
        return agent if agent in self.rewards else "team"

    def outcome(self, agent: str) -> float:
        """Return R(e, i): the agent's own outcome plus the team's."""
        return self.rewards.get(agent, 0.0) + self.rewards.get("team", 0.0)

    def total(self, turn: Turn) -> float:
        """Return s_t: the outcome of the turn's agent plus the turn's own reward."""
        return self.outcome(turn.agent) + turn.score


@dataclass(frozen=True, slots=True)
class Swap:
    """Describes what a replay of an episode changes: one call says something else."""

    path: tuple[int, ...]  # of the call
    text: str | None  # what it says; None: it is sampled anew
    draw: int = 0  # number of the new sample
    policy: Any = None  # an `agents.agent.Policy` that samples it instead of the agent's own
    temperature: float | None = None  # of all calls, which are sampled anew; the path is ()


GREEDY = Swap((), None, temperature=0.0)  # the same task and world, played greedily


Pair = tuple[Turn, Turn]  # the better turn, the worse turn
Group = list[Episode]  # the attempts at one task that are compared with one another


@dataclass(slots=True, eq=False)
class Batch:
    """Turns of a policy packed into one row without padding, shared prefixes stored once.

    A turn with prompt [7, 8] and tokens [9, 2] is the row [7, 8, 9, 2] with mask [0, 0, 1, 1],
    positions [0, 1, 2, 3] and parent [-1, 0, 1, 2]. A second one with the same prompt and tokens
    [4] adds the token 4 with mask 1, position 2 and parent 1: prompts are shared, sampled tokens
    never are. Tokens stand in depth-first order, so what follows from a token is one stretch of the
    row.
    """

    policy: str
    agent: str  # "" where turns of several agents share tokens
    tokens: Ids  # [N]
    positions: Ids  # [N] position within the turn's own prompt + tokens
    parent: Ids  # [N] index of the position whose logits predict this token, or NO_PARENT
    mask: Floats  # [N] 1 where the token was sampled and is trained, else 0
    index: Ids  # [N] `Turn.index` of the turn that sampled this token, 0 where mask is 0
    words: Ids  # [N] words of the turn that sampled this token, at least 1; 0 where mask is 0
    turn: Ids  # [N] index into `turn_ids`; of a shared token, the first turn that has it
    turn_ids: list[str]
    old_logprobs: Floats | None  # [N] sampler's; None: of a data set. 0 where mask is 0, as below
    advantages: Floats  # [N]
    returns: Floats  # [N]
    weight: Floats  # [N] Turn.weight, spread
    temperature: Floats  # [N] the logits that predict this token are divided by it
    prox_logprobs: Floats | None  # [N] None: the log-probs of this very forward pass, detached
    ref_logprobs: Floats | None  # [N]
    values: Floats | None  # [N] the critic's values when credit was given
    pairs: Ids  # [S, 2] indices into `turn_ids`: the better and the worse turn of each pair
    num_tokens: int  # trained tokens, those of skipped turns included
    num_turns: int  # trained turns, skipped ones included
    parts: list[Batch] = field(default_factory=list)  # of several agents: each one's own turns


def group_by(turns: Iterable[Turn], *keys: str | Callable[[Turn], Hashable]) -> list[list[Turn]]:
    """Group turns by attributes (or functions of a turn), in order of first appearance.

    group_by([solver@x, verifier@x, solver@y], "task", "agent") ->
    [[solver@x], [verifier@x], [solver@y]]
    """
    groups: dict[tuple[Hashable, ...], list[Turn]] = {}
    for turn in turns:
        key = tuple(getattr(turn, k) if isinstance(k, str) else k(turn) for k in keys)
        groups.setdefault(key, []).append(turn)
    return list(groups.values())


def calls(turns: Iterable[Turn]) -> list[list[Turn]]:
    """Group one agent's turns in one episode by the call they answer: with tools it takes several.

    A turn that follows one of the agent's own belongs to that one's call.
    """
    by_id = {turn.id: turn for turn in turns}

    def first(turn: Turn) -> str:
        while own := [name for name in turn.parents if name in by_id]:
            turn = by_id[own[0]]
        return turn.id

    return group_by(by_id.values(), first)


def spread(turn: Turn, value: float) -> Floats:
    """Return the same number on each of a turn's sampled tokens: [T]."""
    return np.full(len(turn.ids[1]), value, dtype=np.float32)
