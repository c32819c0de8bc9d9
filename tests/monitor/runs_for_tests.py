"""Small real runs on disk for the tests of what shows them."""

import json

import numpy as np
import yaml

from rolecall.core.types import Episode, Message, Task, Turn
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.run_folder import RunFolder

CONFIG = {
    "team": {
        "solver": {"policy": "small", "trainable": True},
        "verifier": {"policy": "big", "trainable": False},
    },
    "policies": {
        "small": {"base": "tiny:math", "adapter": None, "optimizer": {"lr": 0.0001}},
        "big": {"base": "tiny:math", "adapter": {"rank": 8}, "optimizer": None},
    },
    "workflow": {"name": "solver_verifier"},
    "environment": {"name": "math"},
    "algorithm": {"name": "drmas"},
    "rollout": {"groups": 2, "group_size": 2},
    "trainer": {"steps": 4, "seed": 7},
}


def episode(task, attempt, *, score=0.0, advantage=None, text="4", source="add", error=None):
    """A solver that says `text`, and a verifier that says yes."""
    name = f"1:{task}:{attempt}"
    scores = {} if score is None else {"team": score}
    found = Episode(
        id=name,
        task=Task(task, f"What is {task}?", "4", {"source": source}),
        attempt=attempt,
        seed=0,
        rewards={"team": score or 0.0},
        scores=scores,
        answer=text,
        error=error,
    )
    for place, (agent, said) in enumerate((("solver", text), ("verifier", "yes"))):
        ids = np.array([5, 6], dtype=np.int32)
        found.turns.append(
            Turn(
                id=f"{name}/{place}",
                task=task,
                episode=name,
                agent=agent,
                policy={"solver": "small", "verifier": "big"}[agent],
                path=(place,),
                messages=[Message("system", "Be exact."), Message("user", found.task.prompt)],
                prompt=ids,
                tokens=ids,
                logprobs=np.zeros(2, dtype=np.float32),
                versions=np.zeros(2, dtype=np.int32),
                text=said,
                finish="stop",
                advantages=None if advantage is None else np.full(2, advantage, dtype=np.float32),
            )
        )
    return found


def step_record(step, *, agents=("solver", "verifier"), **more):
    record = {"kind": "step", "step": step, "score": 0.25 + 0.1 * step, "time/step_s": 60.0}
    for agent in agents:
        record |= {
            f"agent/{agent}/reward": 0.111 * step,
            f"agent/{agent}/grad_norm": 0.5,
            f"agent/{agent}/entropy": 0.3,
            f"agent/{agent}/tokens": 20.0,
        }
    for part, share in (("rollout", 0.4), ("credit", 0.1), ("update", 0.4), ("publish", 0.1)):
        record[f"time/{part}_share"] = share
    return record | {"pace/tokens_per_s": 842.2, "pace/sampled_tokens_per_s": 1900.0} | more


def evaluation_record(step, when, mean):
    scores = {"avg@8": mean, "avg@8_margin": 0.031, "pass@8": 0.871, "pass@8_margin": 0.03}
    return {
        "kind": "evaluation",
        "step": step,
        "when": when,
        **scores,
        "num_tasks": 210,
        "by_source": {
            "add": {**scores, "num_tasks": 100},
            "word": {**scores, "num_tasks": 110},
        },
        "failures": {},
    }


def make_run(path, *, records=(), episodes=(), evaluated=()):
    """A run's folder with what is given, and nothing else."""
    folder = RunFolder(path)
    folder.episodes.mkdir(parents=True)
    folder.config.write_text(yaml.safe_dump(CONFIG))
    folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    if episodes:
        write_parquet(folder.episode_file(1), list(episodes), step=1)
    if evaluated:
        write_parquet(path / "evaluation-000000.parquet", list(evaluated), step=0)
    return folder
