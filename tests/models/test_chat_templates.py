"""A policy may name a chat template in place of its base's own, or in place of none."""

from __future__ import annotations

import json
import shutil

import pytest

from rolecall.agents.chat_template import prompt_ids
from rolecall.core.types import Message
from rolecall.models.base_location import locate
from rolecall.models.loading import load_tokenizer
from tests.cli.test_cli import rolecall
from tests.toy import relay_config, write


@pytest.fixture
def bare(model_folder, tmp_path):
    """A base without a chat template."""
    folder = tmp_path / "bare"
    shutil.copytree(model_folder, folder)
    for file in folder.glob("chat_template*"):
        file.unlink()
    return folder


def test_plain_writes_role_and_text_and_ends_what_the_assistant_says(bare):
    tokenizer = load_tokenizer(str(bare), chat_template="plain")
    end = tokenizer.eos_token
    asked = [Message("system", "Add."), Message("user", "2+2")]
    first = prompt_ids(tokenizer, asked, options={})
    assert tokenizer.decode(first) == "system:\nAdd.\n\nuser:\n2+2\n\nassistant:\n"
    spoken = tokenizer(f"4{end}", add_special_tokens=False, return_tensors="np")["input_ids"][0]
    again = [*asked, Message("assistant", "4", tokens=spoken), Message("user", "sure?")]
    second = prompt_ids(tokenizer, again, options={})
    assert second[: len(first)].tolist() == first.tolist()
    assert second[len(first) : len(first) + len(spoken)].tolist() == spoken.tolist()
    assert tokenizer.decode(second).endswith(f"4{end}\n\nuser:\nsure?\n\nassistant:\n")


def test_a_file_takes_the_place_of_the_templates_of_a_base(model_folder, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{% for message in messages %}[{{ message['content'] }}]{% endfor %}")
    tokenizer = load_tokenizer(str(model_folder), chat_template=str(file))
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "[a]"
    )


def test_a_team_of_bases_without_a_template_trains_with_plain(bare, tmp_path, capsys):
    path = write(tmp_path / "team.yaml", relay_config(bare))
    status, _, error = rolecall("check", path, capsys=capsys)
    assert status == 2
    assert "set the policy's chat_template: plain" in error
    plain = [f"policies.{name}.chat_template=plain" for name in "ab"]
    run = tmp_path / "run"
    status, _, error = rolecall(
        "train", path, *plain, f"output={run}", "trainer.steps=1", capsys=capsys
    )
    assert status == 0, error
    saved = (
        next(run.glob("checkpoints/*/a"), None) or next(run.rglob("tokenizer_config.json")).parent
    )
    assert load_tokenizer(str(saved)).chat_template, "a checkpoint has the template"


def test_a_template_that_cannot_be_read_is_one_line_with_its_key(model_folder, tmp_path, capsys):
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    status, _, error = rolecall(
        "check", path, "policies.a.chat_template=nowhere.jinja", capsys=capsys
    )
    assert status == 2
    assert error.count("\n") == 1
    assert "policies.a.base: chat_template 'nowhere.jinja' cannot be read" in error
    assert "write plain or the path of a Jinja file" in error


def test_a_model_without_an_end_cannot_speak_plainly(bare):
    file = bare / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in settings.items() if k != "eos_token"}))
    for extra in bare.glob("special_tokens_map.json"):
        extra.unlink()
    with pytest.raises(ValueError, match="has no end-of-text token"):
        load_tokenizer(str(bare), chat_template="plain")


def test_old_names_of_the_hub_have_an_owner():
    assert locate("gpt2") == "openai-community/gpt2"
    assert locate("distilgpt2") == "distilbert/distilgpt2"
