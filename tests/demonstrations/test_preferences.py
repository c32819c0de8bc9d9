"""Preferences from files: what is read, what is refused, and a run that trains on them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolecall.agents.agent import Policy
from rolecall.demonstrations.offline_data import preferences
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import agent, solo_config

PAIR = {"prompt": "a?", "chosen": "aaaa", "rejected": "zzzz"}


@pytest.fixture
def solver(model_folder):
    tokenizer = load_tokenizer(str(model_folder))
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda _: ""))
    return {"solver": agent("solver", policy, system="Say it.")}


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_texts_and_chat_messages_make_the_same_ids(solver, tmp_path):
    said = [{"role": "user", "content": "a?"}]
    one, two = ([*said, {"role": "assistant", "content": t}] for t in ("aaaa", "zzzz"))
    rows = [
        PAIR,
        {"prompt": said, "chosen": one[-1:], "rejected": two[-1:]},
        {"chosen": one, "rejected": two},
        {side: f"\n\nHuman: a?\n\nAssistant: {text}" for side, text in
         (("chosen", "aaaa"), ("rejected", "zzzz"))},
    ]  # fmt: skip
    groups = preferences(written(tmp_path / "r.jsonl", *rows), solver)
    pq.write_table(pa.Table.from_pylist([PAIR]), tmp_path / "r.parquet")
    groups += preferences(tmp_path / "r.parquet", solver)
    assert len(groups) == 5
    for better, worse in groups:
        assert (better.rewards, worse.rewards) == ({"team": 1.0}, {"team": 0.0})
        for mine, first in zip((better, worse), groups[0], strict=True):
            turn, wanted = mine.turns[0], first.turns[0]
            assert turn.prompt.tolist() == wanted.prompt.tolist()
            assert turn.tokens.tolist() == wanted.tokens.tolist()
            assert turn.logprobs is None
    tokenizer = solver["solver"].policy.tokenizer
    assert tokenizer.decode(groups[0][0].turns[0].tokens[:-1]) == "aaaa"
    assert "Say it." in tokenizer.decode(groups[0][0].turns[0].prompt)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a?", "chosen": "x"}, "no pair: the row has no `rejected`"),
        ({"prompt": "a?", "chosen": "x", "rejected": "x"}, "chosen and rejected are the same"),
        ({"prompt": "a?", "chosen": "x", "rejected": ""}, "no pair: the row has no `rejected`"),
        ({**PAIR, "agent": "nobody"}, "no agent 'nobody'"),
        ({"chosen": "\n\nHuman: a?", "rejected": "\n\nHuman: b?"}, "does not end with"),
        ({**PAIR, "prompt": 5}, "neither texts nor lists"),
        ({**PAIR, "prompt": [{"role": "assistant", "content": "x"}]}, "does not end with a user"),
    ],
)
def test_a_row_without_a_pair_is_named_by_file_and_line(solver, tmp_path, row, said):
    with pytest.raises(ValueError, match=r"r\.jsonl:2.*") as error:
        preferences(written(tmp_path / "r.jsonl", PAIR, row), solver)
    assert said in str(error.value)


def test_an_answer_of_a_file_ends_once_and_opens_no_other_message(solver, tmp_path):
    tokenizer = solver["solver"].policy.tokenizer
    ends = tokenizer.eos_token
    row = {"prompt": "a?", "chosen": f"a{ends}user\nb", "rejected": "<think>x</think>c"}
    [[better, worse]] = preferences(written(tmp_path / "r.jsonl", row), solver)
    tokens = better.turns[0].tokens.tolist()
    assert tokens.count(tokenizer.eos_token_id) == 1
    assert tokens[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(worse.turns[0].tokens[:-1]) == "<think>x</think>c"


def test_missing_and_empty_files_are_refused(solver, tmp_path):
    with pytest.raises(ValueError, match="there is no data file"):
        preferences(tmp_path / "none.jsonl", solver)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"empty\.jsonl"):
        preferences(tmp_path / "empty.jsonl", solver)


def test_dpo_learns_the_preference_of_a_file(model_folder, tmp_path):
    rows = [{**PAIR, "prompt": f"{n}?"} for n in range(8)]
    config = solo_config(
        model_folder,
        policies={
            "a": {"base": str(model_folder), "optimizer": {"lr": 3e-3}, "reference": "initial"}
        },
        algorithm="dpo",
        trainer={"steps": 12},
    )
    config["rollout"] = {"groups": 4, "data": str(written(tmp_path / "r.jsonl", *rows))}
    display = Display()
    losses = []
    display.step = lambda record: losses.append(
        (record["agent/solver/loss"], record["agent/solver/pair_accuracy"])
    )
    import asyncio

    asyncio.run(trainer_of(config, tmp_path / "run", display).train())
    assert losses[0][0] == pytest.approx(np.log(2), rel=1e-5)
    assert losses[-1][0] < 0.2
    assert losses[-1][1] == 1.0
