"""Imports what is used of transformers, without scikit-learn and SciPy, which are not used here.

Where they are installed, transformers imports them with every model, for assisted generation and
for losses of object detection, and that takes a second. Lists that it makes are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rolecall.runtime.kept_lists import kept_lists

with kept_lists():
    from transformers import utils

__all__ = [
    "AttentionInterface",
    "AutoConfig",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoTokenizer",
    "GenerationConfig",
    "GradientCheckpointingLayer",
    "PreTrainedModel",
    "PreTrainedTokenizerFast",
    "cached_file",
    "transformers_logging",
]
UNUSED = ("is_sklearn_available", "is_scipy_available")


@contextmanager
def _without_unused() -> Iterator[None]:
    """Modules of transformers that are imported inside find neither of them installed."""
    known = {name: getattr(utils, name) for name in UNUSED if hasattr(utils, name)}
    for name in known:
        setattr(utils, name, lambda: False)
    try:
        yield
    finally:
        for name, found in known.items():
            setattr(utils, name, found)


with _without_unused():
    from transformers import (
        AttentionInterface,
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        GenerationConfig,
        PreTrainedModel,
        PreTrainedTokenizerFast,
    )
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.utils import cached_file
    from transformers.utils import logging as transformers_logging
