"""Writes tokens as texts, with the tokenizer of a run's checkpoint and without its model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from rolecall.watch.runs import WatchedRun
from rolecall.watch.stamps import stamp

MOST = 4  # tokenizers that are kept
_kept: OrderedDict[tuple[str, object], Any] = OrderedDict()
_lock = threading.Lock()


def write_tokens(run: WatchedRun, policy: str, ids: list[int]) -> tuple[list[str], str]:
    """Return the text of each token, and "" or why the texts are numbers.

    A character whose bytes are spread over several tokens stands with the last of them.
    """
    file = _find_tokenizer(run, policy)
    if file is None:
        why = f"no checkpoint of {policy!r} is there with a tokenizer.json, so ids are shown"
        return [str(one) for one in ids], why
    try:
        tokenizer = _load(file)
        return decode_each(tokenizer, ids), ""
    except Exception as error:  # the library raises plain Exceptions for files it cannot read
        why = f"tokenizer.json of {policy!r} cannot be read, so ids are shown: {error}"
        return [str(one) for one in ids], why[:300]


def decode_each(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return the text that each token adds to those before it."""
    texts, begin, shown = [], 0, ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[begin:end], skip_special_tokens=False)
        if text.endswith("�") and end - begin < 8 and end < len(ids):
            texts.append("")
            continue
        texts.append(text[len(shown) :])
        begin, shown = end - 1, tokenizer.decode(ids[end - 1 : end], skip_special_tokens=False)
        if shown.endswith("�"):  # half of a character: the next token stands by itself
            begin, shown = end, ""
    return texts


def _load(file: Path) -> Any:
    from tokenizers import Tokenizer

    key = (str(file), stamp(file))
    with _lock:
        if key not in _kept:
            _kept[key] = Tokenizer.from_file(str(file))
            while len(_kept) > MOST:
                _kept.popitem(last=False)
        _kept.move_to_end(key)
        return _kept[key]


def _find_tokenizer(run: WatchedRun, policy: str) -> Path | None:
    """Return the tokenizer of the newest checkpoint that has the policy; None where none has."""
    folder = run.path / "checkpoints"
    files = [file for file in folder.glob("*/*/tokenizer.json") if file.is_file()]
    own = [file for file in files if file.parent.name == policy]
    return max(own, key=lambda file: file.stat().st_mtime_ns, default=None)
