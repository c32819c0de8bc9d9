"""What chat templates cannot do is said before a run begins."""

from __future__ import annotations

import logging

import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.models.loading import load_tokenizer
from rolecall.setup.templates import check_templates
from tests.toy import relay_config, write

# Roles in one order only, as Gemma's and Mistral's first templates have them.
WITHOUT_SYSTEM = (
    "{%- for m in messages %}{%- if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{%- endif %}{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def config_with(folder, tmp_path, **left):
    config = relay_config(folder)
    config["team"]["left"] |= left
    return load(write(tmp_path / "team.yaml", config))


def tokenizers(folder):
    return dict.fromkeys("ab", load_tokenizer(str(folder)))


def test_tools_that_the_template_does_not_show_are_refused_with_what_works(model_folder, tmp_path):
    config = config_with(model_folder, tmp_path, tools={"use": ["calculator"]})
    with pytest.raises(
        ConfigError, match=r"^team\.left\.tools\.format: native.*write format: tags"
    ):
        check_templates(config, tokenizers(model_folder))


def test_tools_in_tags_need_nothing_of_the_template(model_folder, tmp_path):
    use = {"use": ["calculator"], "format": "tags"}
    check_templates(config_with(model_folder, tmp_path, tools=use), tokenizers(model_folder))


def test_a_template_without_a_system_role_is_named(model_folder, tmp_path, caplog):
    config = config_with(model_folder, tmp_path, system="Be brief.")
    known = tokenizers(model_folder)
    known["a"].chat_template = WITHOUT_SYSTEM
    with caplog.at_level(logging.WARNING, logger="rolecall.notices"):
        check_templates(config, known)
    [line] = [record.getMessage() for record in caplog.records]
    assert "policies.a.base: its chat template has no system role" in line
