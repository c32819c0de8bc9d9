"""The small language model that tests sample and train, where this machine has it."""

from __future__ import annotations

import pytest

from rolecall.models.known_models import KNOWN_MODELS, find_fetched

NAME = "smollm2-135m"
FOLDER = find_fetched(KNOWN_MODELS[NAME])
NOT_FETCHED = f"{NAME} is not on this machine: rolecall fetch {NAME}"
needs_small_model = pytest.mark.skipif(FOLDER is None, reason=NOT_FETCHED)


def skip_without_small_model() -> None:
    """Skip a test that needs the model only in some of its cases."""
    if FOLDER is None:
        pytest.skip(NOT_FETCHED)
