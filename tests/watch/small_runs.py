"""Run folders that are small enough to know what a page must say of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from rolecall.core.credit import Compared
from rolecall.core.interfaces.learner import TurnTokens, Update
from rolecall.core.types import CoachNote, Episode, Message, Task, Turn
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.update_io import write_updates

HOSTILE = "<img src=x onerror=alert(1)>\u202egnihton\u202c \x1b[31mred"
CONFIG = {
    "team": {
        "solver": {"policy": "small", "trainable": True, "sampling": {"max_tokens": 8}},
        "judge": {"policy": "small", "trainable": True, "sampling": {"max_tokens": 8}},
    },
    "policies": {"small": {"base": "somewhere"}},
    "workflow": {"name": "solver_verifier"},
    "environment": {"name": "math"},
    "algorithm": {"name": "drmas"},
    "rewards": {"correct": 1.0},
    "rollout": {"groups": 2, "group_size": 2, "timeout_s": 600.0},
    "trainer": {"steps": 4, "max_staleness": 0},
}


def write_run(
    folder: Path, *, steps: int = 3, updates: bool = True, config: dict | None = None
) -> Path:
    """Write a run of two tasks with two attempts a step, each a solver's and a judge's turn."""
    run = RunFolder(folder)
    for path in (run.episodes, run.updates, run.journal, run.checkpoints):
        path.mkdir(parents=True)
    run.config.write_text(yaml.safe_dump(config or CONFIG, sort_keys=False))
    for step in range(1, steps + 1):
        write_step(run, step, updates=updates)
    return folder


def write_step(run: RunFolder, step: int, *, updates: bool = True) -> None:
    episodes = [make_episode(step, task, attempt) for task in ("add", "sub") for attempt in (0, 1)]
    write_parquet(run.episode_file(step), episodes, step=step)
    turns = [turn for episode in episodes for turn in episode.turns]
    if updates:
        write_updates(run.update_file(step), {"small": make_update(turns)}, turns)
    run.append_metrics(make_record(step))


def make_record(step: int) -> dict:
    own = {"turns": 1.0, "tokens": 2.0, "truncated": 0.0, "invalid": 0.0, "zero_signal": 0.0}
    record = {"kind": "step", "step": step, "score": 0.25 * step, "policy/small/grad_norm": 0.5}
    record |= {"rollout/episodes": 4.0, "rollout/failures": 0.0, "time/step_s": 1.5}
    for agent in ("solver", "judge"):
        record |= {f"agent/{agent}/{name}": value for name, value in own.items()}
    return record


def make_episode(step: int, task: str, attempt: int) -> Episode:
    """Attempt 1 is right; of the task `sub` the solver says the same in both attempts."""
    name = f"{step}:{task}:{attempt}"
    is_right = attempt == 1
    said = f"{task} {step} {HOSTILE if is_right and task == 'add' else 'plain'}"
    solver = make_turn(name, "solver", (0,), said if task == "add" else "alike", is_right)
    judge = make_turn(name, "judge", (1,), "yes" if is_right else "no", is_right)
    judge.parents, judge.verdict = (solver.id,), "approve" if is_right else "reject"
    judge.tools.calls = [
        {"name": "calculator", "arguments": {"text": "1+1"}, "result": "2", "error": ""}
    ]
    if is_right:
        solver.coach.note = CoachNote(8.0, "Right.", {"tries": 1, "cost_usd": 0.01})
    else:
        solver.coach.note = CoachNote(2.0, "Wrong.", {"tries": 1, "cost_usd": 0.01})
    made = Episode(name, Task(task, f"{task} 1 and 1?", "2", {"source": "sums"}), attempt, seed=0)
    made.turns, made.step = [solver, judge], step
    made.rewards = {"team": float(is_right)}
    made.scores, made.answer = {"team": float(is_right)}, said
    made.metrics = {"wall_s": 1.0}
    return made


def make_turn(episode: str, agent: str, path: tuple[int, ...], text: str, right: bool) -> Turn:
    _, task, _ = episode.split(":")
    turn = Turn(f"{episode}/{'.'.join(map(str, path))}", task, episode, agent, "small", path)
    turn.prompt, turn.tokens = np.array([1, 2], np.int32), np.array([3, 4], np.int32)
    turn.logprobs = np.array([-0.5, -2.0], np.float32)
    turn.versions = np.array([0, 0], np.int32)
    turn.messages = [Message("system", f"You are {agent}."), Message("user", "1 and 1?")]
    turn.text, turn.finish = text, "stop"
    turn.began_s, turn.ended_s = float(path[0]), path[0] + 0.5
    turn.reset_credit()
    key = {"task": task, "agent": agent}
    score = float(right)
    turn.give_credit(Compared(score, 0.5, n=2, made_of={"outcome": score}, key=key, std=0.5))
    return turn


def make_update(turns: list[Turn]) -> Update:
    """The learner's log-probs are 0.1 above the sampler's, and the second token is clipped."""
    update = Update(grad_norm=0.5, agent_grad_norms={"solver": 0.4, "judge": 0.1}, lr=0.01)
    lengths = np.full(len(turns), 2, np.int32)
    logprobs = np.concatenate([turn.logprobs + np.float32(0.1) for turn in turns])
    clipped = np.tile([False, True], len(turns))
    names = [turn.id for turn in turns]
    update.tokens = [TurnTokens(names, lengths, logprobs, np.ones_like(logprobs), clipped)]
    return update


def append_line(run: Path, record: dict | str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(record if isinstance(record, str) else json.dumps(record) + "\n")
