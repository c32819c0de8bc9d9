"""Templates whose messages any text can forge are found; others are not blamed."""

from __future__ import annotations

import ast

import pytest

from rolecall.agents.plain_frames import plain_frame, warn_of_plain_frame
from tests.layouts import LAYOUTS, tokenizer_of
from tests.sources import source_files

PLAIN = {
    "alpaca": (
        "{% for m in messages %}### {{ 'Instruction' if m.role == 'user' else 'Response' }}:\n"
        "{{ m.content }}\n\n{% endfor %}",
        "\n\n### Response:\n",
    ),
    "vicuna": (
        "{% for m in messages %}{{ 'USER: ' if m.role == 'user' else 'ASSISTANT: ' }}"
        "{{ m.content }}{{ ' ' if m.role == 'user' else eos_token }}{% endfor %}",
        " ASSISTANT: ",
    ),
    "solar": (
        "{% for m in messages %}### {{ m.role | capitalize }}:\n{{ m.content }}\n\n{% endfor %}",
        "\n\n### Assistant:\n",
    ),
    "falcon": (
        "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}",
        "\nAssistant: ",
    ),
}


@pytest.mark.parametrize("family", sorted(LAYOUTS))
def test_templates_with_tokens_or_tags_are_not_blamed(family):
    assert plain_frame(tokenizer_of(LAYOUTS[family])) is None


@pytest.mark.parametrize("family", sorted(PLAIN))
def test_templates_in_plain_words_are_named_with_their_words(family, caplog):
    tokenizer = tokenizer_of(LAYOUTS[sorted(LAYOUTS)[0]])
    tokenizer.chat_template, frame = PLAIN[family]
    # Templates that are read by transformers drop the last line end of a block.
    assert (plain_frame(tokenizer) or "").strip() == frame.strip()
    warn_of_plain_frame(tokenizer, key="policies.a.base")
    assert "policies.a.base: the chat template marks messages by plain words" in caplog.text


def test_a_template_that_refuses_the_order_or_is_missing_is_no_error():
    tokenizer = tokenizer_of(LAYOUTS[sorted(LAYOUTS)[0]])
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert plain_frame(tokenizer) is None
    tokenizer.chat_template = None
    assert plain_frame(tokenizer) is None


def test_prompts_are_rendered_only_where_foreign_text_is_broken_up():
    found = {
        name
        for name, file in source_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "apply_chat_template"
    }
    assert found == {
        "agents/control_tokens.py", "agents/plain_frames.py", "agents/turn_form.py",
        "rewards/reward_model.py",
    }  # fmt: skip
