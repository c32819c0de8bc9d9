"""Tokens are those of `tokenizer.json`, whatever class the base names for it."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer as RawTokenizer

from rolecall.models.loading import load_tokenizer
from rolecall.models.tokenizers import FILE, PROBES, read_tokenizer
from tests.conftest import make_model


@pytest.fixture
def base(tmp_path):
    return make_model(tmp_path / "base", "llama3.2")


def rename_class(folder, name: str) -> None:
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"tokenizer_class": name}))


@pytest.mark.parametrize("name", ["LlamaTokenizerFast", "LlamaTokenizer", "TokenizerOfMyOwn"])
def test_a_class_that_reads_the_file_otherwise_is_not_used(base, name):
    """A byte-level file that is called Llama's lost every space; an unknown class is not run."""
    rename_class(base, name)
    tokenizer = load_tokenizer(str(base))
    raw = RawTokenizer.from_file(str(base / FILE))
    for text in PROBES:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == raw.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.chat_template
    assert tokenizer.eos_token_id is not None


def test_code_of_a_base_is_not_run_and_nobody_is_asked(base, monkeypatch):
    file = base / "tokenizer_config.json"
    content = json.loads(file.read_text())
    own = {"auto_map": {"AutoTokenizer": ["own.py--Own", None]}, "tokenizer_class": "Own"}
    file.write_text(json.dumps(content | own))
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("somebody was asked"))
    assert read_tokenizer(str(base)).decode([5])


def test_a_base_without_a_tokenizer_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="has no usable tokenizer") as error:
        read_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)
