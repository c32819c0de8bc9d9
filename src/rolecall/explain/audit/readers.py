"""Reads what trainers write of their rollouts as samples: one function for each format.

The formats: JSON lines of verl (`trainer.rollout_data_dir`), Parquet files of TRL
(`log_completions`), files of slime and miles (`--save-debug-rollout-data`), traces of verifiers and
prime-rl, and plain JSON lines with the fields of `Sample`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.explain.audit.samples import Sample

Rows = Iterable[tuple[str, Record]]  # file and line, record
PLAIN = {one.name for one in fields(Sample)} - {"source"}
NEEDED = {"reward", "advantages", "advantage"}  # of plain rows, one of these


def read_dump(path: Path) -> tuple[str, list[Sample]]:
    """Return the name of the format and the samples of a file, or of all files of a folder.

    Raises ConfigError where nothing can be read, or no format fits.
    """
    files = _files(path)
    rows = [row for file in files for row in _rows(file)]
    if not rows:
        raise ConfigError(f"{path} has no rows")
    for name, (fits, read) in FORMATS.items():
        if fits(rows[0][1]):
            try:
                return name, list(read(rows))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path} looks like {name}, but {_describe(error)}") from error
    keys = ", ".join(sorted(map(str, rows[0][1]))[:8])
    raise ConfigError(
        f"{path} has rows with the keys {keys}, which fit none of {', '.join(FORMATS)}; write "
        "plain rows with `group`, `reward` and `advantage`"
    )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path} is not there")
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix in {".jsonl", ".parquet", ".pt"} and file.is_file()
    ]
    if not files:
        raise ConfigError(f"{path} has no .jsonl, .parquet or .pt file")
    return files


def _rows(file: Path) -> Iterator[tuple[str, Record]]:
    try:
        yield from _read_rows(file)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _read_rows(file: Path) -> Iterator[tuple[str, Record]]:
    if file.suffix == ".parquet":
        from pyarrow import parquet

        rows: list[Record] = parquet.read_table(file).to_pylist()
    elif file.suffix == ".pt":
        import torch

        try:
            loaded = torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:  # of any type, as the bytes decide
            raise ValueError(f"it is no file of tensors and numbers alone: {error}") from error
        if not isinstance(loaded, dict) or not isinstance(loaded.get("samples"), list):
            raise ValueError("there is no list `samples` in it")
        rows = loaded["samples"]
    else:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError(f"line {number} is not an object")
                    yield f"{file.name}:{number}", row
        return
    for number, row in enumerate(rows, start=1):
        yield f"{file.name}:{number}", row


# --- formats ---


def read_verl(rows: Rows) -> Iterator[Sample]:
    """Read rows of verl: input, output, gts, score, step, and what the reward function adds.

    Where there is no `uid`, answers to one prompt in one step are a group.
    """
    for source, row in rows:
        group = row.get("uid", row["input"])
        yield Sample(
            id=str(row.get("request_id", source)),
            source=source,
            group=f"{row.get('step', '')}:{_short(group)}",
            prompt=row["input"],
            text=row["output"],
            agent=str(row.get("agent_name", row.get("agent_id", ""))),
            reward=_number(row["score"]),
            advantages=_numbers(row.get("advantages", row.get("advantage"))),
            error=str(row["error"] or "") if "error" in row else None,
            is_truncated=row.get("truncated"),
        )


def read_trl(rows: Rows) -> Iterator[Sample]:
    """Read rows of TRL: step, prompt, completion, a column for each reward function, advantage."""
    for source, row in rows:
        others = ("step", "prompt", "completion", "advantage")
        terms = {
            name: float(value)
            for name, value in row.items()
            if name not in others and isinstance(value, int | float) and value is not None
        }
        prompt = _text(row["prompt"])
        yield Sample(
            id=source,
            source=source,
            group=f"{row['step']}:{_short(prompt)}",
            prompt=prompt,
            text=_text(row["completion"]),
            reward=sum(terms.values()) if terms else None,
            advantages=_numbers(row["advantage"]),
        )


def read_slime(rows: Rows) -> Iterator[Sample]:
    """Read samples of slime and miles: group_index, tokens, response_length, reward, loss_mask."""
    for source, row in rows:
        tokens, length = [*map(int, row["tokens"])], int(row["response_length"])
        status = str(row.get("status", "completed"))
        reward = row.get("reward")
        if isinstance(reward, dict):
            reward = reward.get("score")
        mask = row.get("loss_mask")
        yield Sample(
            id=str(row.get("index", source)),
            source=source,
            group=None if row.get("group_index") is None else str(row["group_index"]),
            episode=None if row.get("rollout_id") is None else str(row["rollout_id"]),
            prompt=_text(row["prompt"]),
            text=row.get("response", ""),
            reward=_number(reward),
            prompt_ids=tokens[: len(tokens) - length],
            ids=tokens[len(tokens) - length :],
            mask=None if mask is None else [*map(bool, mask)],
            sampler_logprobs=row.get("rollout_log_probs"),
            versions=[*map(int, row.get("weight_versions") or [])] or None,
            trainer_version=(row.get("metadata") or {}).get("trainer_version"),
            error=status if status in {"failed", "aborted"} else "",
            is_truncated=status == "truncated",
        )


def read_traces(rows: Rows) -> Iterator[Sample]:
    """Read episodes of verifiers 1 and prime-rl: traces of agents, each a graph of messages.

    A sample is a trace: the tokens of its nodes, which are True in `mask` where sampled.
    """
    for source, row in rows:
        group = (row.get("group") or {}).get("id")
        for trace in row.get("traces", [row]):
            rewards = {n: one for n, one in (trace.get("rewards") or {}).items() if one}
            terms = {n: one["score"] * one.get("weight", 1.0) for n, one in rewards.items()}
            nodes = trace.get("nodes") or []
            errors = [*(trace.get("errors") or []), *(row.get("errors") or [])]
            spoken = [node for node in nodes if node.get("sampled")]
            logprobs = [one for node in nodes for one in node.get("logprobs") or []]
            learner = [one for node in nodes for one in node.get("trainer_logprobs") or []]
            credit = [one for node in nodes for one in node.get("advantages") or []]
            yield Sample(
                id=str(trace.get("id", source)),
                source=source,
                group=None if group is None else str(group),
                episode=str(row.get("id", source)),
                agent=str((trace.get("agent") or {}).get("name", "")),
                prompt=_text([node["message"] for node in nodes[: _prompt_length(nodes)]]),
                text=_text([node["message"] for node in spoken]),
                reward=_number(trace.get("reward", sum(terms.values()) if terms else None)),
                reward_parts=terms,
                advantages=credit or None,
                ids=[one for node in nodes for one in node.get("token_ids") or []] or None,
                mask=[bool(one) for node in nodes for one in node.get("mask") or []] or None,
                is_foreign=[
                    not node.get("sampled", False)
                    for node in nodes
                    for _ in node.get("token_ids") or []
                ],
                sampler_logprobs=logprobs or None,
                trainer_logprobs=learner or None,
                error=_error_text(errors) if errors and trace.get("ok") is not True else "",
                is_truncated=trace.get("stop_condition") in {"max_tokens", "context_length"},
            )


def read_plain(rows: Rows) -> Iterator[Sample]:
    """Read rows with the fields of `Sample`; `advantage` may stand for `advantages`."""
    for source, row in rows:
        values = {name: value for name, value in row.items() if name in PLAIN}
        values["advantages"] = _numbers(row.get("advantages", row.get("advantage")))
        for name in ("group", "episode"):
            values[name] = None if row.get(name) is None else str(row[name])
        values["id"] = str(row.get("id", source))
        values["prompt"] = None if row.get("prompt") is None else _text(row["prompt"])
        yield Sample(**values, source=source)


FORMATS: dict[str, tuple[Callable[[Record], bool], Callable[[Rows], Iterator[Sample]]]] = {
    "a dump of verl": (lambda row: {"input", "output", "score"} <= row.keys(), read_verl),
    "a dump of TRL": (
        lambda row: {"step", "prompt", "completion", "advantage"} <= row.keys(),
        read_trl,
    ),
    "a dump of slime": (lambda row: {"tokens", "response_length"} <= row.keys(), read_slime),
    "traces of verifiers": (
        lambda row: "traces" in row or {"nodes", "rewards"} <= row.keys(),
        read_traces,
    ),
    "plain rows": (lambda row: bool(NEEDED & row.keys()), read_plain),
}


# --- fields ---


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _numbers(value: Any) -> list[float] | None:
    if value is None:
        return None
    return [*map(float, value)] if isinstance(value, list | tuple) else [float(value)]


def _text(value: Any) -> str:
    """Return the text of a prompt, or of its chat messages."""
    if isinstance(value, str):
        return value
    return "\n".join(f"{one.get('role', '')}: {_content(one)}" for one in value)


def _content(message: Record) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content)


def _prompt_length(nodes: list[Record]) -> int:
    return next((n for n, node in enumerate(nodes) if node.get("sampled")), len(nodes))


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:20]}...{hash_text(text)}"


def hash_text(text: str) -> str:
    """Return eight hexadecimal digits that tell texts apart."""
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:8]


def _error_text(errors: list[Any]) -> str:
    last = errors[-1]
    return str(last.get("message") or last.get("type") or last) if isinstance(last, dict) else last


def _describe(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
