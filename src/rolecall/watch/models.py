"""Defines what the server of `rolecall watch` answers; the page's types are generated from it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Number = float | None  # None: there is no such number, or it is not finite
Status = Literal["running", "finished", "stopped", "not started"]
Sign = Literal["signal", "no signal", "failed", "filtered", "stale"]


class Model(BaseModel):
    """Is the base of all answers: no field beyond those that are declared."""

    model_config = ConfigDict(extra="forbid")


class Missing(Model):
    """Says what of a run cannot be shown, and why."""

    what: str  # such as "config.yaml", "updates of step 12", "checkpoint step-4"
    why: str


class RunRow(Model):
    """One run in the list of all."""

    run: str  # its name in links: the folder, relative to the one that is watched
    status: Status
    algorithm: str
    environment: str
    agents: list[str]
    step: int
    steps: int  # that it is to do
    score: Number  # of the newest step
    scores: list[Number]  # of its steps, thinned to at most 60
    held_out: Number  # headline of the newest evaluation
    updated: float  # when something was last written, seconds since 1970
    error: str  # the newest one
    sweep: str  # name of the sweep it belongs to; "": none
    differs: dict[str, str]  # keys that differ inside its sweep -> this run's value
    missing: list[Missing]


class Sweep(Model):
    """Runs whose configs differ in a few keys only."""

    name: str
    keys: list[str]
    runs: list[str]


class RunList(Model):
    """All runs of the folders that are watched."""

    runs: list[RunRow]
    sweeps: list[Sweep]
    total: int


class AgentRow(Model):
    """One agent of a run's team."""

    agent: str
    policy: str
    base: str
    is_trained: bool
    adapter: str  # "rank 16"; "": all weights


class Evaluation(Model):
    """One evaluation of a run on tasks that it is not trained on."""

    step: int
    when: str
    split: str
    headline: str  # name of the measure
    value: Number
    margin: Number
    scores: dict[str, Number]  # flat, such as "avg@1" or "by_source/gsm8k/avg@1"


class Link(Model):
    """A place of the page that shows something."""

    text: str
    href: str  # relative to the page, such as "talk?run=math&step=3&episode=3:add-1:0"


class Advice(Model):
    """Says what is wrong, in a sentence, with the key to change and what shows it."""

    kind: (
        str  # no signal | lazy | captured | mismatch | stale | truncated | tools | invalid | failed
    )
    severity: Literal["note", "warning", "error"]
    text: str
    key: str  # what to write instead, such as "team.solver.sampling.max_tokens=512"; "": nothing
    step: int
    links: list[Link]


class Run(Model):
    """One run as a whole."""

    row: RunRow
    team: list[AgentRow]
    workflow: str
    config: str  # config.yaml
    steps: list[int]
    series: dict[str, list[Number]]  # name -> value by step; those that any step has
    evaluations: list[Evaluation]
    advice: list[Advice]
    chapters: list[str]  # "after step 20: trainer.steps 20 -> 40"
    cursor: str  # for /api/changes
    kinds: list[str]  # pages that have something to show: coach, tools, matrix, prompts, spikes, ..
    missing: list[Missing]


class Changes(Model):
    """Holds what was written since a cursor."""

    cursor: str
    is_new: bool  # the run began anew or was rewound: forget what was read before
    status: Status
    steps: list[int]
    series: dict[str, list[Number]]
    evaluations: list[Evaluation]
    in_flight: int  # episodes of steps that are being played, as far as the journal tells


class GroupRow(Model):
    """The attempts at one task in one step."""

    task: str
    source: str
    family: str
    question: str  # shortened
    sign: Sign
    attempts: int
    scores: list[Number]  # by attempt
    advantages: dict[str, tuple[float, float]]  # agent -> least and largest


class Norm(Model):
    """Gradient norms of one optimizer step of one policy."""

    policy: str
    optimizer_step: int  # from 1 within the step
    grad_norm: Number
    agents: dict[str, Number]
    lr: Number
    kl: Number
    tokens: int
    skipped: str  # the turn without a finite gradient


class Reason(Model):
    """Why turns or episodes of a step are not as they should be, with examples."""

    name: str  # error | invalid | truncated | refused call | timed-out call | dropped | filtered ..
    text: str
    count: int
    of: int
    links: list[Link]


class Step(Model):
    """One step of training."""

    run: str
    step: int
    steps: list[int]  # with episodes on disk
    metrics: dict[str, Number]
    groups: list[GroupRow]
    norms: list[Norm]
    reasons: list[Reason]
    advice: list[Advice]
    missing: list[Missing]


class Cell(Model):
    """One turn on the board of a group."""

    turn: str
    agent: str
    text: str  # shortened
    advantage: Number
    valid: bool
    finish: str
    trained: bool
    chosen: bool
    is_new: bool  # its text is not that of any earlier attempt in this row


class BoardRow(Model):
    """One joint step of all attempts of a group."""

    path: str
    cells: list[Cell | None]  # by attempt
    is_parting: bool  # the first row in which attempts say different things


class BoardColumn(Model):
    """One attempt of a group."""

    episode: str
    attempt: int
    score: Number
    rewards: dict[str, float]
    error: str


class Arithmetic(Model):
    """The credit of one agent in a group, in words and numbers."""

    agent: str
    sentences: list[str]
    samples: list[tuple[str, float]]  # turn, score


class Group(Model):
    """The board of one group: attempts are columns, joint steps are rows."""

    run: str
    step: int
    task: str
    source: str
    question: str
    reference: str
    sign: Sign
    why: str  # it has no signal, or has one
    columns: list[BoardColumn]
    rows: list[BoardRow]
    arithmetic: list[Arithmetic]


class Message(Model):
    """One message that an agent was shown."""

    role: str
    content: str


class ToolCall(Model):
    """One call of a tool, with what came back."""

    name: str
    arguments: str
    result: str
    status: str  # ok | error | refused | timed out
    seconds: Number


class CoachPass(Model):
    """Holds what a coach said of a turn."""

    name: str  # "first", "hindsight"
    score: float  # of 10
    reasoning: str
    cost_usd: Number


class CreditTerm(Model):
    """One term of a turn's credit."""

    kind: str
    sentence: str
    formula: str


class Why(Model):
    """Explains how a turn came by its advantage."""

    outcome: float
    rewards: dict[str, float]  # the turn's own, by name
    advantage: Number
    first: Number  # advantage of its first token
    last: Number
    weight: float
    terms: list[CreditTerm]
    samples: list[tuple[str, str, float]]  # turn, its episode, score: what it was compared with
    note: str


class Turn(Model):
    """One turn of a conversation."""

    turn: str
    agent: str
    policy: str
    path: str
    lane: int  # of its agent in the graph
    column: int  # its joint step in the graph
    parents: list[str]
    text: str
    thinking: str
    messages: list[Message]
    finish: str
    valid: bool
    trained: bool
    chosen: bool
    candidate: int | None
    tokens: int
    prompt_tokens: int
    temperature: Number
    weight: Number
    began_s: Number  # since the episode began
    ended_s: Number
    version: int | None  # of the policy that sampled its first token
    verdict: str
    tools: list[ToolCall]
    coach: list[CoachPass]
    coach_error: str
    why: Why
    raw: dict[str, str]  # what else is recorded, as JSON


class Attempt(Model):
    """Another attempt at the same task, to go to."""

    episode: str
    attempt: int
    score: Number


class Talk(Model):
    """One episode: graph, transcript, and why each turn got its credit."""

    run: str
    step: int
    split: str
    episode: str
    attempt: int
    task: str
    source: str
    question: str
    reference: str
    answer: str
    score: Number
    rewards: dict[str, float]
    metrics: dict[str, Number]
    error: str
    agents: list[str]  # the lanes of the graph
    turns: list[Turn]
    attempts: list[Attempt]
    missing: list[Missing]


class Tokens(Model):
    """The sampled tokens of a turn, column by column; a column that is not recorded is None."""

    turn: str
    ids: list[int]
    texts: list[str]  # shown with control characters made visible
    text_note: str  # why texts are ids, where they are
    advantages: list[Number] | None
    logprobs: list[Number] | None  # of the sampler
    learner_logprobs: list[Number] | None  # before the update
    entropies: list[Number] | None
    clipped: list[bool] | None
    versions: list[int] | None
    ref_logprobs: list[Number] | None
    values: list[Number] | None
    returns: list[Number] | None


class SpikeToken(Model):
    """One token, by how much it moves the gradient."""

    turn: str
    episode: str
    agent: str
    policy: str
    optimizer_step: int
    token: int  # its place in the turn
    text: str
    before: str  # the text before it in the turn, shortened
    after: str
    logprob: float
    advantage: float
    ratio: float
    estimate: float  # |weight x ratio x advantage| (1 - p) / temperature
    share: float  # of the sum over all tokens of its optimizer step
    measured: Number  # norm of its own gradient, where it was measured


class SpikeAgent(Model):
    """Says how much of an optimizer step's estimate is one agent's."""

    agent: str
    policy: str
    optimizer_step: int
    turns: int
    tokens: int
    estimate: float
    share: float
    grad_norm: Number


class SpikeTurn(Model):
    """Says how much of an optimizer step's estimate is one turn's."""

    turn: str
    episode: str
    agent: str
    policy: str
    optimizer_step: int
    tokens: int
    advantage: float
    estimate: float
    share: float


class Spikes(Model):
    """Says where the gradient of a step came from: agents, turns, tokens."""

    run: str
    step: int
    steps: list[int]  # with episodes on disk
    norms: list[Norm]
    median: dict[str, Number]  # policy -> median gradient norm of the 20 steps before
    agents: list[SpikeAgent]
    turns: list[SpikeTurn]  # the largest 20
    tokens: list[SpikeToken]  # the largest 100
    of_tokens: int
    note: str  # what the numbers are, and what is missing for them
    job: str  # that measures, or has measured, this step; "": none
    missing: list[Missing]


class Hit(Model):
    """A turn that a search names."""

    step: int
    episode: str
    turn: str
    agent: str
    task: str
    score: Number
    advantage: Number
    valid: bool
    finish: str
    snippet: str
    ranges: list[tuple[int, int]]  # in the snippet, of what was searched for


class FindLine(Model):
    """One line of the stream of a search; the last one has `is_end`."""

    hit: Hit | None = None
    searched_steps: int = 0
    of_steps: int = 0
    matches: int = 0
    is_end: bool = False
    facets: dict[str, dict[str, int]] = Field(default_factory=dict)  # column -> value -> matches
    error: str = ""  # what is wrong with the query


class TaskAttempts(Model):
    """All attempts at one task in one step."""

    step: int
    attempts: list[Attempt]
    mean: Number
    turns: list[list[Cell]]  # by attempt


class TaskHistory(Model):
    """One task through the training."""

    run: str
    task: str
    source: str
    question: str
    reference: str
    steps: list[TaskAttempts]  # those that are shown
    all_steps: list[int]


class PairRow(Model):
    """One task in two runs."""

    task: str
    source: str
    first: Number
    second: Number
    difference: Number


class Comparison(Model):
    """Two runs beside one another."""

    runs: list[str]
    differs: list[tuple[str, str, str]]  # key, value in the first, in the second
    same: int  # keys
    series: dict[str, list[tuple[list[int], list[Number]]]]  # name -> steps and values by run
    pairs: list[PairRow]
    of_pairs: int
    mean: Number  # difference
    margin: Number
    note: str


class PromptVersion(Model):
    """The system or first message of an agent, from one step on."""

    hash: str
    steps: list[int]  # first and last
    count: int
    text: str
    example: Link


class AgentPrompts(Model):
    """Shows how the messages to an agent have changed."""

    agent: str
    role: str  # system | first
    versions: list[PromptVersion]
    more: int  # versions that are not listed


class Prompts(Model):
    """System and first messages of all agents."""

    run: str
    agents: list[AgentPrompts]
    searched_steps: int
    of_steps: int


class CoachRow(Model):
    """Holds what a coach said of one turn, in a list."""

    step: int
    turn: str
    episode: str
    agent: str
    score: float
    hindsight: Number
    outcome: Number
    reasoning: str


class CoachPage(Model):
    """Shows what coaches said, and whether that goes with the outcome."""

    run: str
    step: int
    steps: list[int]  # with episodes on disk
    correlation: dict[str, Number]  # agent -> with the outcome of its episode, of this step
    all_steps: list[int]  # of the series
    by_step: dict[str, list[Number]]  # series of the coach
    rows: list[CoachRow]
    failures: list[tuple[str, str]]  # turn, error
    missing: list[Missing]


class ToolRow(Model):
    """Shows how one tool was used by one agent in one step."""

    agent: str
    tool: str
    calls: int
    errors: int
    timed_out: int
    refused: int
    seconds: Number  # mean
    advantage_with: Number  # mean advantage of turns that called it
    advantage_without: Number
    examples: list[Link]


class ToolsPage(Model):
    """Tools and the sandbox in one step."""

    run: str
    step: int
    steps: list[int]  # with episodes on disk
    rows: list[ToolRow]
    all_steps: list[int]  # of the series
    by_step: dict[str, list[Number]]
    missing: list[Missing]


class RoleCell(Model):
    """Turns in which an agent gave a verdict, by whether the team was right."""

    agent: str
    verdict: str
    right: int
    wrong: int
    links_right: list[Link]
    links_wrong: list[Link]


class Roles(Model):
    """Shows what verdicts say, and whether they are true."""

    run: str
    step: int
    steps: list[int]  # with episodes on disk
    cells: list[RoleCell]
    by_step: list[tuple[int, str, float]]  # step, agent, share of verdicts that are true


class Matrix(Model):
    """Roles of one step played with roles of another, as `rolecall crossplay` wrote it."""

    run: str
    name: str
    names: list[str]  # of all matrices that were written, to ask for with `name`
    rows: list[str]
    columns: list[str]
    values: list[list[Number]]
    margins: list[list[Number]]
    note: str
    missing: list[Missing]


class Job(Model):
    """A process that computes with the run's weights, started from the page."""

    job: str
    kind: Literal["whatif", "blame", "spikes"]
    run: str
    status: Literal["running", "done", "failed", "cancelled"]
    seconds: float
    command: str  # to type in a terminal
    error: str
    result: dict[str, object] | None


class Session(Model):
    """Says what this server allows."""

    version: str
    allows_jobs: bool  # --what-if
    folders: list[str]
