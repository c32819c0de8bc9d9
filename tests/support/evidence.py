"""Leaves rows of a parametrized test to `make evidence`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def leave_to_evidence(rows: Iterable[Any], *, keep: Iterable[Any]) -> list[Any]:
    """Return all rows, those that `make test` does not run marked as evidence.

    Keep the rows that differ in kind. A row that is kept and does not exist is an error.
    """
    rows, keep = list(rows), list(keep)
    strange = [row for row in keep if row not in rows]
    assert not strange, f"no such rows: {strange}"
    return [row if row in keep else pytest.param(row, marks=pytest.mark.evidence) for row in rows]
