"""A trained team answers at the terminal, and its policies are folders that others read."""

from __future__ import annotations

import io
import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import rolecall as package
from tests.cli.test_cli import refused, rolecall
from tests.toy import relay_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ask") / "run"
    config = relay_config(model_folder)
    config["policies"]["b"]["adapter"] = {"rank": 2}
    package.train(config, output=folder, trainer={"steps": 2})
    return folder


def test_a_question_is_answered_with_what_each_agent_said(run, capsys):
    status, out, error = rolecall("ask", run, "abc?", capsys=capsys)
    assert (status, error) == (0, "")
    lines = out.splitlines()
    assert [line.partition("]")[0] for line in lines[:2]] == ["[left", "[right"]
    assert lines[-1].startswith("answer: ")


def test_lines_of_the_input_are_questions_until_exit(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("a?\n\nb?\nexit\nc?\n"))
    status, out, _ = rolecall("ask", run, capsys=capsys)
    assert status == 0
    assert out.count("answer: ") == 2


def test_the_questions_of_a_file_are_answered_in_their_order(run, tmp_path, capsys):
    file, answers = tmp_path / "q.jsonl", tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}?", "id": n}) + "\n" for n in range(5)))
    keys = ["--prompts", file, "-o", answers, "-n", 2]
    status, out, _ = rolecall("ask", run, *keys, capsys=capsys)
    assert (status, out) == (0, f"Wrote {answers}: 5 rows with 2 answers each\n")
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(5))
    assert all(len(row["answers"]) == 2 for row in rows)


def test_bad_questions_are_one_line_each(run, tmp_path, capsys):
    file = tmp_path / "q.jsonl"
    file.write_text('{"words": "a"}\n')
    answers = tmp_path / "a.jsonl"
    line = refused("ask", run, "--prompts", file, "-o", answers, capsys=capsys)
    assert "row 1 has no question; name its column question, prompt or problem (it has" in line
    assert "--output is missing" in refused("ask", run, "--prompts", file, capsys=capsys)
    assert "write --prompts FILE" in refused("ask", run, "a?", "-n", 2, capsys=capsys)
    assert "no such" in refused("ask", run, "--prompts", tmp_path / "none", "-o", answers,
                                capsys=capsys).casefold()  # fmt: skip


def test_a_merged_adapter_computes_what_base_and_adapter_do(run, model_folder, tmp_path, capsys):
    status, out, _ = rolecall("export", run, "-o", tmp_path / "plain", capsys=capsys)
    assert status == 0
    assert [line.rpartition("/")[2] for line in out.splitlines()] == ["a", "b"]
    status, *_ = rolecall(
        "export", run, "-o", tmp_path / "whole", "--merge", "--policy", "b", capsys=capsys
    )
    assert status == 0
    ids = torch.tensor([[5, 6, 7, 8]])
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    plain = base(ids).logits
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "plain/b"))(ids).logits
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/b")(ids).logits
    assert torch.allclose(whole, adapted, atol=1e-5)
    assert not torch.allclose(whole, plain, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "whole/b").chat_template
    assert not list((tmp_path / "plain").rglob("learner.pt"))


def test_exports_that_cannot_be_are_refused(run, tmp_path, capsys):
    (tmp_path / "there/a").mkdir(parents=True)
    there, new = tmp_path / "there", tmp_path / "new"
    assert "is there already" in refused("export", run, "-o", there, capsys=capsys)
    wrong = refused("export", run, "-o", new, "--policy", "c", capsys=capsys)
    assert "--policy c: the run trains a, b" in wrong
    whole = refused("export", run, "-o", new, "--policy", "a", "--merge", capsys=capsys)
    assert "--merge: a has no adapter; leave --merge out" in whole
