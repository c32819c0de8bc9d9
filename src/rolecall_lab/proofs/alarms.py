"""Measures how often alarms find a planted fault before the score falls, and how often without one.

Tables stand in place of language models; credit, updates and metrics are the framework's own. Every
seed draws a game of its own: how good the agents are when they begin, what a task needs, how many
tasks are hopeless in each step, and how fast the agents learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

import numpy as np
import torch

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.drmas import DrMas
from rolecall.core.json_types import Record
from rolecall.core.types import Episode, Task, Turn
from rolecall.monitor.alarms import WINDOW, Alarm, find_alarms
from rolecall.monitor.metrics import rollout_metrics
from rolecall.rollout.episodes import Rollout
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Table, pack_turns, update

NUM_STEPS, NUM_TASKS, NUM_ATTEMPTS = 60, 16, 4
END, START = 0, 2  # tokens of a helper: 0 ends its answer, 1 is work; 2 ends its prompt
MOST_WORK = 16  # tokens
CLEAN_HELPERS, LAZY_HELPERS = ("works", "works, replayed"), ("is paid apart", "is not needed")
SHORT_HELPERS = ("is paid to be short",)  # and is right to be: no fault, and no agent at its best
CLEAN_ROLES, CAPTURED_ROLES = ("other states", "one preference", "few turns"), ("opposed",)
NUM_RUNS, NUM_SEEDS = 50, 4
LOSS = 0.2  # least loss of score that is a fall
HARD = 40  # step from which a helper that was not needed is


@dataclass(frozen=True, slots=True)
class Play:
    """The metrics of a run, and the first alarm for the agent with a fault, or for any."""

    records: list[Record]
    alarm: Alarm | None

    @property
    def losses(self) -> Doubles:
        """The share of its loss of score that the team has lost after its best window, [windows].

        Empty where the team loses less than 0.2.
        """
        scores = [record["score"] for record in self.records]
        means = np.convolve(scores, np.full(WINDOW, 1 / WINDOW), mode="valid")
        best = int(means.argmax())
        loss = means[best] - means[best:].min()
        if loss < LOSS:
            return np.zeros(0)
        return np.concatenate([np.zeros(best), (means[best] - means[best:]) / loss])

    @property
    def fall(self) -> int | None:
        """The first step whose window has lost half; None without a loss."""
        losses = self.losses
        return int((losses > 0.5).argmax()) + WINDOW if len(losses) else None

    @property
    def is_in_time(self) -> bool:
        return self.alarm is not None and self.fall is not None and self.alarm.step < self.fall


class Speaker:
    """An agent whose answers are drawn token by token from a table."""

    def __init__(self, agent: str, table: Table, *, policy: str = "", most: int = 1) -> None:
        self.agent, self.table, self.policy, self.most = agent, table, policy or agent, most
        self.read_table()

    def read_table(self) -> None:
        """Read the log-probs of a step."""
        self.logprobs = self.table.logits.detach().log_softmax(-1).tolist()
        self.ends = [math.exp(row[END]) for row in self.logprobs]

    def speak(self, episode: Episode, state: int, random: Random) -> Turn:
        """Add a turn to an episode; its answer goes on until a token is 0."""
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < self.most and END not in tokens:
            row = tokens[-1] if tokens else state
            tokens.append(int(random.random() > self.ends[row]))
            logprobs.append(self.logprobs[row][tokens[-1]])
        number = len(episode.turns)
        turn = Turn(
            id=f"{episode.id}/{number}",
            task=episode.task.id,
            episode=episode.id,
            agent=self.agent,
            policy=self.policy,
            path=(number,),
            prompt=np.array([state], dtype=np.int32),
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
        )
        episode.turns.append(turn)
        return turn


def play_helper(kind: str, *, seed: int) -> Play:
    """A solver is right or wrong; its helper writes as many tokens as it likes, and a task needs
    some of them.
    """
    random = Random(f"{kind} {seed}")
    right, going = random.uniform(0.3, 0.6), random.uniform(0.8, 0.9)
    most_needed, most_hopeless = random.randint(1, 3), random.uniform(0, 0.3)
    cost, needs = 0.0, np.ones(NUM_STEPS)
    if kind == "is paid to be short":
        cost = random.uniform(0.0, 0.01)
    if kind == "is paid apart":
        cost = random.uniform(0.01, 0.1)
    if kind == "is not needed":
        cost, needs[:HARD] = random.uniform(0.01, 0.03), random.uniform(0, 0.1)
    replays = kind in ("works, replayed", "is not needed")
    algorithm: Algorithm = Counterfactual(baseline="text") if replays else DrMas()
    solver = Speaker("solver", Table([[1 - right, right]]))
    rows = [[0.5, 0.5], [1 - going, going], [1 - going, going]]
    helper = Speaker("helper", Table(rows), most=MOST_WORK)
    rate = random.uniform(0.2, 0.6)

    def score(solved: list[int], work: list[int], needed: int) -> float:
        return float(solved[0] == 1 and work.count(1) >= needed)

    def step(number: int) -> list[Episode]:
        episodes = []
        hopeless = random.uniform(0, most_hopeless)
        for task, attempt in np.ndindex(NUM_TASKS, NUM_ATTEMPTS):
            if attempt == 0:
                needed = random.randint(1, most_needed) * (random.random() < needs[number])
                needed = MOST_WORK + 1 if random.random() < hopeless else needed
            episode = Episode(f"{number}:{task}:{attempt}", Task(f"{task}", ""), attempt, 0)
            turns = [helper.speak(episode, START, random), solver.speak(episode, 0, random)]
            work, solved = [[*map(int, turn.ids[1])] for turn in turns]
            outcome = score(solved, work, needed)
            episode.scores = {"team": outcome}
            paid_apart = kind == "is paid apart"
            episode.rewards = {"solver": outcome, "helper": 0.0 if paid_apart else outcome}
            turns[0].rewards["length"] = -cost * len(work)
            if replays:
                turns[0].training.replayed = score(solved, [], needed)
                turns[1].training.replayed = score([0], work, needed)
            episodes.append(episode)
        return episodes

    faulty = "helper" if kind in LAZY_HELPERS else ""
    return _train([solver, helper], algorithm, step, rate=rate, faulty=faulty)


def play_shared(kind: str, *, seed: int) -> Play:
    """A writer and a judge share weights: two actions in three states. The judge decides."""
    random = Random(f"{kind} {seed}")
    good, most_hopeless = random.uniform(0.6, 0.9), random.uniform(0, 0.3)
    num_turns = 1 if kind == "few turns" else random.randint(4, 6)
    common = random.uniform(0.5, 1.0)  # of the judge's tasks that look like the writer's
    paid = 1 if kind == "opposed" else 0  # action of the writer; the judge's is 0
    state = 1 if kind == "other states" else 0  # of the writer
    table = Table([[good, 1 - good], [1 - good, good], [0.5, 0.5]])
    writer = Speaker("writer", table, policy="shared")
    judge = Speaker("judge", table, policy="shared")
    rate = random.uniform(0.03, 0.12)

    def step(number: int) -> list[Episode]:
        episodes = []
        hopeless = random.uniform(0, most_hopeless)
        for task, attempt in np.ndindex(NUM_TASKS, NUM_ATTEMPTS):
            if attempt == 0:
                is_hopeless = random.random() < hopeless
                judged = 0 if random.random() < common else 2
            episode = Episode(f"{number}:{task}:{attempt}", Task(f"{task}", ""), attempt, 0)
            for _ in range(num_turns):
                turn = writer.speak(episode, state, random)
                turn.rewards["own"] = float(turn.ids[1][0] == paid)
            verdict = judge.speak(episode, judged, random)
            outcome = float(verdict.ids[1][0] == 0 and not is_hopeless)
            episode.scores = {"team": outcome}
            episode.rewards = {"judge": outcome, "writer": 0.0}
            episodes.append(episode)
        return episodes

    faulty = "judge" if kind in CAPTURED_ROLES else ""
    return _train([writer, judge], DrMas(), step, rate=rate, faulty=faulty)


def _train(
    speakers: Sequence[Speaker],
    algorithm: Algorithm,
    step: Callable[[int], list[Episode]],
    *,
    rate: float,
    faulty: str,
) -> Play:
    """Train the tables of the speakers, and read the metrics of every step."""
    tables = {speaker.policy: speaker.table for speaker in speakers}
    records = []
    for number in range(NUM_STEPS):
        for speaker in speakers:
            speaker.read_table()
        episodes = step(number)
        algorithm.credit(episodes)
        groups = [episodes[n : n + NUM_ATTEMPTS] for n in range(0, len(episodes), NUM_ATTEMPTS)]
        record = {"kind": "step", "step": number + 1, **rollout_metrics(Rollout(groups))}
        record |= {f"algorithm/{name}": value for name, value in algorithm.metrics().items()}
        for policy, table in tables.items():
            turns = [t for e in episodes for t in e.turns if t.policy == policy]
            if len(tables) < len(speakers):
                record |= _norms(policy, table, turns, algorithm)
            update(table, turns, algorithm, lr=rate)
        records.append(record)
    alarms = find_alarms(records, {speaker.agent: speaker.policy for speaker in speakers})
    own = [alarm for alarm in alarms if not faulty or alarm.agent == faulty]
    return Play(records, own[0] if own else None)


def _norms(policy: str, table: Table, turns: list[Turn], algorithm: Algorithm) -> Record:
    """Return the norms of a policy's gradient and of what each agent adds to it."""
    gradients = {}
    for agent in {turn.agent for turn in turns}:
        gradients[agent] = torch.zeros_like(table.logits)
        for batch in pack_turns([turn for turn in turns if turn.agent == agent], algorithm):
            total = algorithm.loss(batch, table.outputs(batch)).total
            gradients[agent] += torch.autograd.grad(total, table.logits)[0]
    whole = torch.stack([*gradients.values()]).sum(0)
    norms = {f"agent/{agent}/grad_norm": float(own.norm()) for agent, own in gradients.items()}
    return {f"policy/{policy}/grad_norm": float(whole.norm()), **norms}


def play_kinds(kinds: Sequence[str], seeds: Sequence[int]) -> list[Play]:
    """Play each kind of helper or of shared weights with all of the seeds."""
    shared = (*CLEAN_ROLES, *CAPTURED_ROLES)
    return [
        play_shared(kind, seed=seed) if kind in shared else play_helper(kind, seed=seed)
        for kind in kinds
        for seed in seeds
    ]


def summarise(plays: Sequence[Play]) -> str:
    """Return how many alarms came at all, in time, and how long before the fall."""
    raised = [play for play in plays if play.alarm is not None]
    timely = [play for play in plays if play.is_in_time]
    text = f"{len(plays)} runs: {len(raised)} alarms, {len(timely)} before the fall"
    if not timely:
        return text
    leads = [play.fall - play.alarm.step for play in timely]  # type: ignore[operator, union-attr]
    lost = [float(play.losses[play.alarm.step - WINDOW]) for play in timely]  # type: ignore[union-attr]
    return (
        f"{text} by {min(leads)} to {max(leads)} steps (median {median(leads):g}), when a median "
        f"of {median(lost):.0%} of the loss had come"
    )


def claims() -> Iterator[Claim]:
    """Yield claims for a few seeds; `python -m rolecall_lab.proofs.alarms` plays 50 runs each."""
    seeds = range(NUM_SEEDS)
    for what, faulty, clean in (
        ("A lazy helper", LAZY_HELPERS, CLEAN_HELPERS),
        ("A role that loses shared weights", CAPTURED_ROLES, CLEAN_ROLES),
    ):
        plays, sound = play_kinds(faulty, seeds), play_kinds(clean, seeds)
        timely = sum(play.is_in_time for play in plays)
        false = sum(play.alarm is not None for play in sound)
        yield Claim(
            f"{what} in {len(plays)} runs, and {len(sound)} runs without a fault: alarms.",
            "before the fall in 90 %, and in less than 10 % of the others",
            f"{timely} of {len(plays)}, and {false} of {len(sound)}",
            timely >= 0.9 * len(plays) and false < 0.1 * len(sound),
        )


if __name__ == "__main__":
    for kinds in (LAZY_HELPERS, CLEAN_HELPERS, SHORT_HELPERS, CAPTURED_ROLES, CLEAN_ROLES):
        number = math.ceil(NUM_RUNS / len(kinds))
        print(f"{' / '.join(kinds)}: {summarise(play_kinds(kinds, range(number)))}", flush=True)
