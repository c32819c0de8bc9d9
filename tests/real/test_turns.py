"""Every real tokenizer and template: turns that were sampled, and rows that nobody sampled."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer

from rolecall.agents.chat_template import encode, prompt_ids, show
from rolecall.agents.turn_form import render, stop_ids, turn_form
from rolecall.agents.written_turn import write_ids, write_turn
from rolecall.core.types import Message
from rolecall.models.tokenizers import PROBES
from tests.real.fetch import VERSIONS, folder_of
from tests.real.models import BY_NAME, CASES, KINDS, real_tokenizer
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

NAMES = [case.name for case in CASES]
QUESTION, AGAIN = Message("user", "What is 2 + 3?"), Message("user", "Are you sure?")
ANSWER = "It is \\boxed{5}."


@pytest.mark.parametrize("name", leave_to_evidence(VERSIONS, keep=["llama2", "qwen3"]))
def test_a_text_has_the_tokens_of_the_tokenizers_file(name):
    folder = folder_of(name)
    if folder is None:
        pytest.skip(f"tokenizer {name} has not been fetched: make real-tokenizers")
    from rolecall.models.tokenizers import read_tokenizer

    tokenizer = read_tokenizer(str(folder))
    raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    for text in PROBES:
        ids = encode(tokenizer, text).tolist()
        assert ids == raw.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids).strip() == text.strip()


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=KINDS))
def test_a_turn_ends_as_its_template_ends_it(name):
    tokenizer, expected = real_tokenizer(name), BY_NAME[name].end
    end = turn_form(tokenizer).end
    assert end == expected
    assert tokenizer.convert_tokens_to_ids(end) in stop_ids(tokenizer, [])


def two_prompts(tokenizer):
    """Return a prompt, the turn that answers it, and the messages and ids of the next prompt."""
    first = prompt_ids(tokenizer, [QUESTION], options={})
    turn = sampled(tokenizer, first)
    messages = [QUESTION, Message("assistant", ANSWER, turn), AGAIN]
    return first, turn, messages, prompt_ids(tokenizer, messages, options={})


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=KINDS))
def test_a_prompt_begins_with_the_prompt_and_the_turn_before_it(name):
    tokenizer = real_tokenizer(name)
    first, turn, messages, second = two_prompts(tokenizer)
    both = [*first.tolist(), *turn.tolist()]
    assert second[: len(both)].tolist() == both
    third = prompt_ids(
        tokenizer, [*messages, Message("assistant", ANSWER, turn), AGAIN], options={}
    )
    more = [*second.tolist(), *turn.tolist()]
    assert third[: len(more)].tolist() == more


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=KINDS))
def test_what_stands_behind_a_turn_is_tokenised_as_in_the_whole_text(name):
    """No second end, and no space that SentencePiece puts before a text of its own."""
    tokenizer = real_tokenizer(name)
    first, turn, _, second = two_prompts(tokenizer)
    behind = second[len(first) + len(turn) :].tolist()
    assert behind[0] != turn[-1]
    spoken = [QUESTION, Message("assistant", ANSWER), AGAIN]
    whole = encode(tokenizer, render(tokenizer, show(tokenizer, spoken), asks=True)).tolist()
    assert whole[-len(behind) :] == behind


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=KINDS))
@pytest.mark.parametrize("answer", [ANSWER, "<think>\nTwo and three.\n</think>\n\nIt is 5."])
def test_a_row_is_what_the_template_writes_behind_its_prompt(name, answer):
    tokenizer = real_tokenizer(name)
    prompt = prompt_ids(tokenizer, [QUESTION], options={})
    written = write_turn(tokenizer, [QUESTION], answer, options={})
    ids = write_ids(tokenizer, prompt, written)
    end = turn_form(tokenizer).end
    assert ids[-1] == tokenizer.convert_tokens_to_ids(end)
    text = tokenizer.decode(ids)
    assert text.count(end) == 1
    words = answer.rpartition("</think>")[2].strip()
    assert text.removesuffix(end).rstrip().endswith(words)
    opened = render(tokenizer, show(tokenizer, [QUESTION]), asks=True)
    thoughts = opened.count("<think>") + text.count("<think>")
    assert thoughts <= 1
    assert thoughts == (opened + text).count("</think>") or "<think>" not in opened + text


def sampled(tokenizer, prompt) -> np.ndarray:
    """The turn that a model of this family would sample: what its template writes."""
    return write_ids(tokenizer, prompt, write_turn(tokenizer, [QUESTION], ANSWER, options={}))
