"""Loads the tokenizers of bases whose files are on this machine, without a network or weights."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from rolecall.agents.chat_template import Tokenizer
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.models.base_location import locate
from rolecall.models.loading import load_tokenizer

FILE = "tokenizer_config.json"


def load_local_tokenizers(config: Config) -> tuple[dict[str, Tokenizer], list[str]]:
    """Return tokenizers by policy, and the bases whose tokenizer is not on this machine.

    Policies whose engines take text need none. Raises ConfigError with a line for each base whose
    tokenizer or chat template cannot be used.
    """
    tokenizers: dict[str, Tokenizer] = {}
    absent: list[str] = []
    problems: list[str] = []
    for name, policy in config.policies.items():
        if config.takes_text(name):
            continue
        folder = _find_folder(policy.base)
        if folder is None:
            absent.append(policy.base)
            continue
        try:
            tokenizers[name] = load_tokenizer(folder, chat_template=policy.chat_template)
        except ValueError as error:
            message = str(error).replace(repr(folder), repr(policy.base))
            problems.append(f"policies.{name}.base: {message}")
    if problems:
        raise ConfigError(*problems)
    return tokenizers, list(dict.fromkeys(absent))


def _find_folder(base: str) -> str | None:
    """Return the folder of a base: its own, or its snapshot in the cache of the hub."""
    folder = locate(base)
    if Path(folder).is_dir():
        return folder
    file = try_to_load_from_cache(folder, FILE)
    return str(Path(file).parent) if isinstance(file, str) else None
