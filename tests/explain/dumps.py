"""Small dumps as several trainers write them, right ones and ones with a fault."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
REWARDS = (1.0, 0.0, 0.0, 1.0)


def relative(rewards: tuple[float, ...] = REWARDS) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    return [(r - mean) / (std + 1e-6) for r in rewards]


def plain() -> Rows:
    """Two groups of four, with token ids, a mask, log-probs and rewards in terms."""
    return [
        {
            "id": f"{group}-{attempt}",
            "group": group,
            "attempt": attempt,
            "prompt": f"What is {group}?",
            "text": f"the answer of attempt {attempt}",
            "reward": reward,
            "reward_parts": {"correct": reward},
            "advantage": advantage,
            "prompt_ids": [1, 2, 3],
            "ids": [10 + attempt] * 9,
            "mask": [1] * 9,
            "sampler_logprobs": [-0.5 - attempt] * 9,
            "trainer_logprobs": [-0.51 - attempt] * 9,
        }
        for group in ("a", "b")
        for attempt, (reward, advantage) in enumerate(zip(REWARDS, relative(), strict=True))
    ]


def conversation() -> Rows:
    """Two turns of one agent; the second prompt holds the first turn's tokens."""
    shared = {"group": "a", "episode": "a-0", "agent": "solver", "reward": 1.0, "advantage": 0.0}
    return [
        {**shared, "id": "a-0/0", "prompt": "2 + 2?", "text": "let me think about it",
         "prompt_ids": [1, 2], "ids": [5, 6, 7, 99]},
        {**shared, "id": "a-0/1", "prompt": "2 + 2? let me think about it Go on.", "text": "4",
         "prompt_ids": [1, 2, 5, 6, 7, 99, 8], "ids": [4, 99]},
    ]  # fmt: skip


def verl() -> Rows:
    return [
        {"input": f"What is {group}?", "output": f"answer {n}", "gts": "4", "score": reward,
         "step": 1, "acc": reward}
        for group in ("a", "b") for n, reward in enumerate(REWARDS)
    ]  # fmt: skip


def trl() -> Rows:
    return [
        {"step": 1, "prompt": f"What is {group}?", "completion": f"answer {n}",
         "exact": reward, "form": 0.0, "advantage": advantage}
        for group in ("a", "b")
        for n, (reward, advantage) in enumerate(zip(REWARDS, relative(), strict=True))
    ]  # fmt: skip


def slime() -> Rows:
    return [
        {"group_index": g, "index": 4 * g + n, "prompt": f"What is {g}?", "response": f"answer {n}",
         "tokens": [1, 2, 3, *[10 + n] * 8], "response_length": 8, "loss_mask": [1] * 8,
         "reward": reward, "rollout_log_probs": [-0.5 - n] * 8, "weight_versions": ["3"],
         "status": "completed", "metadata": {}}
        for g in range(2) for n, reward in enumerate(REWARDS)
    ]  # fmt: skip


def traces() -> Rows:
    """Episodes of verifiers, each with the trace of one agent that calls a tool."""
    made = []
    for group in ("a", "b"):
        for n, (reward, advantage) in enumerate(zip(REWARDS, relative(), strict=True)):
            nodes = [
                _node("user", f"What is {group}?", [1, 2, 3]),
                _node("assistant", "call", [4, 5], advantage=advantage, sampled=True),
                _node("tool", "the result", [6, 7]),
                _node("assistant", f"answer {n}", [8, 9 + n], advantage=advantage, sampled=True),
            ]
            trace = {"id": f"{group}{n}", "agent": {"name": "solver"}, "nodes": nodes, "ok": True,
                     "rewards": {"correct": {"score": reward, "weight": 1.0}}}  # fmt: skip
            made.append({"id": f"e-{group}{n}", "group": {"id": group}, "ok": True,
                         "traces": [trace]})  # fmt: skip
    return made


def _node(role: str, text: str, ids: list[int], *, advantage=0.0, sampled=False) -> dict:
    node = {"message": {"role": role, "content": text}, "sampled": sampled, "token_ids": ids,
            "mask": [sampled] * len(ids)}  # fmt: skip
    if sampled:
        node |= {"logprobs": [-0.5] * len(ids), "advantages": [advantage] * len(ids)}
    return node


def write(path: Path, rows: Rows) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        import torch

        torch.save({"rollout_id": 1, "samples": rows}, path)
    return path


def changed(rows: Rows, number: int, **changes: Any) -> Rows:
    """Return the rows with one of them changed."""
    rows = deepcopy(rows)
    rows[number] |= changes
    return rows
