"""Answers the sampled tokens of one turn, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite
from rolecall.watch.models import Number, Tokens
from rolecall.watch.refusals import UnknownNameError
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_rows
from rolecall.watch.talk import find_file
from rolecall.watch.texts import write_tokens

COLUMNS = (
    "policy", "token_ids", "logprobs", "advantages", "returns", "values", "ref_logprobs",
    "versions",
)  # fmt: skip
UPDATED = ("learner_logprobs", "entropies", "clipped")


def answer_tokens(run: WatchedRun, step: int | None, turn: str, split: str | None) -> Tokens:
    """Return the tokens of a turn with all that is recorded of each."""
    number, file = find_file(run, step, turn, split)
    records = read_rows(file, COLUMNS, [("turn", "=", turn)]).records
    if not records:
        raise UnknownNameError(f"{file.name} of {run.name!r} has no turn {turn!r}")
    row = records[0]
    ids = list(row["token_ids"] or ())
    texts, note = write_tokens(run, row["policy"] or "", ids)
    if not ids:
        note = "no tokens are recorded: a server sampled this turn as text"
    updated = read_update(run.update_file(number), turn) if split in (None, "", "train") else {}
    clipped = updated.get("clipped")
    return Tokens(
        turn=turn,
        ids=ids,
        texts=texts,
        text_note=note,
        advantages=_numbers(row["advantages"]),
        logprobs=_numbers(row["logprobs"]),
        learner_logprobs=_numbers(updated.get("learner_logprobs")),
        entropies=_numbers(updated.get("entropies")),
        clipped=None if clipped is None else [bool(one) for one in clipped],
        versions=None if row["versions"] is None else list(row["versions"]),
        ref_logprobs=_numbers(row["ref_logprobs"]),
        values=_numbers(row["values"]),
        returns=_numbers(row["returns"]),
    )


def read_update(file: Path, turn: str) -> Record:
    """Return what the update of a step recorded of a turn; {} where there is nothing."""
    records = read_rows(file, UPDATED, [("turn", "=", turn)]).records
    return records[0] if records else {}


def _numbers(values: Sequence[Any] | None) -> list[Number] | None:
    return None if values is None else [finite(value) for value in values]
