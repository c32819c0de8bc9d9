"""Loads the tokenizer of a base, and compares it with the file that the model was trained with."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import cached_file

from rolecall.agents.chat_template import Tokenizer
from rolecall.core.errors import first_line
from rolecall.models.base_location import locate

FILE = "tokenizer.json"
# Spaces, line ends, digits, accents, other scripts, and a character of four bytes.
PROBES = (
    "What is 2 + 3?", "  two  spaces\n\n\tand a tab", "na\u00efve caf\u00e9 1234567",
    "\u4f60\u597d\uff0c\u4e16\u754c", "x = {'a': [1, 2]}  # \U0001f600",
)  # fmt: skip


def read_tokenizer(path: str) -> Tokenizer:
    """Return the tokenizer of a folder or a hub name, whether or not it has a chat template.

    transformers may choose a class that does not follow `tokenizer.json`: a byte-level one that is
    called LlamaTokenizerFast loses every space; and a class that the base brings as code of its
    own is not run. Then the file is read as it is. Raises ValueError where that differs too.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if (file := _find_file(path)) is None:
            raise ValueError(
                f"base {path!r} has no usable tokenizer: {first_line(error)}"
            ) from error
    else:
        file = _find_file(path)
        if file is None or not _differing_text(tokenizer, file):
            return tokenizer
    plain: Tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    if text := _differing_text(plain, file):
        raise ValueError(
            f"base {path!r}: transformers reads its {FILE} wrongly: {text!r} has other tokens; "
            "name another base, or correct tokenizer_class in its tokenizer_config.json"
        )
    return plain


def num_tokens(tokenizer: Tokenizer) -> int:
    """Return one more than the largest id of the tokenizer; 0 if it has none."""
    return 1 + max(tokenizer.get_vocab().values(), default=-1)


def padded_ids(base: str, tokenizer: Tokenizer) -> range:
    """Return the ids of the base's head that its tokenizer does not have."""
    size = AutoConfig.from_pretrained(locate(base)).get_text_config().vocab_size
    return range(num_tokens(tokenizer), size)


def _find_file(path: str) -> Path | None:
    """Return the base's `tokenizer.json`, from its folder or the hub's cache, if it has one."""
    if Path(path).is_dir():
        file = Path(path) / FILE
        return file if file.is_file() else None
    cached = cached_file(path, FILE, _raise_exceptions_for_missing_entries=False)
    return None if cached is None else Path(cached)


def _differing_text(tokenizer: Tokenizer, file: Path) -> str:
    """Return the first probe that has other tokens than those of the file, or ""."""
    from tokenizers import Tokenizer as RawTokenizer

    raw = RawTokenizer.from_file(str(file))
    for text in PROBES:
        expected = raw.encode(text, add_special_tokens=False).ids
        if tokenizer(text, add_special_tokens=False)["input_ids"] != expected:
            return text
    return ""
