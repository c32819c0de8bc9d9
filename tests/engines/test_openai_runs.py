"""Whole runs in which a trained agent speaks beside one that a server answers for."""

from __future__ import annotations

import asyncio
import json
import random
from copy import deepcopy
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rolecall.agents.agent import Policy
from rolecall.agents.team import Team
from rolecall.config.served import OpenAIEngineConfig
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.types import Swap
from rolecall.engines.served.openai import OpenAIEngine
from rolecall.runtime import call_tree
from rolecall.storage.episode_io import from_json, to_json
from tests.algorithms.test_every_algorithm import (
    Display,
    StoppedError,
    case,
    saved,
    train,
    trainer_of,
)
from tests.engines.servers import Asked, chat, refused, serving
from tests.retrieval.foreign import nobody
from tests.toy import agent, command, episode, relay_config, write

pytestmark = pytest.mark.slow

KEY = "sk-very-secret"
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)


def judge(url: str, **options) -> dict:
    given = {
        "name": "openai", "url": f"{url}/v1", "model": "m", "key_env": "JUDGE_KEY",
        "timeout_s": 20.0, "pause_s": 0.01,
    }  # fmt: skip
    return {"engine": given | options}


def judged(config: dict, url: str, **options) -> dict:
    """The same team, whose last word is a server's."""
    config = deepcopy(config)
    config["policies"]["b"] = judge(url, **options)
    config["team"]["last"] |= {"trainable": False}
    return config


def letters(asked: Asked):
    """A judge whose word depends on what it was shown, so that some attempts do better."""
    if asked.method == "GET":
        return {"data": []}
    said = asked.body["messages"][-1]["content"]
    return chat("".join(random.Random(said).choices("abcdef", k=4)), answer=4)


def test_a_local_agent_learns_beside_one_behind_an_api(model_folder, tmp_path, capsys):
    """Turns without tokens are stored, shown and counted, and the key is nowhere."""
    folder = tmp_path / "run"
    with serving(lambda a: refused(500, "busy") if a.number % 7 == 1 else letters(a)) as server:
        config = judged(relay_config(model_folder), server.url)
        config["prices"] = {"b": {"completion": 5.0}}
        assert command("train", write(tmp_path / "c.yaml", config), "--output", folder) == 0
    rows = pq.read_table(folder / "episodes/step-000001.parquet").to_pylist()
    last = [row for row in rows if row["agent"] == "last"]
    assert len(last) == 12
    assert all(row["token_ids"] is row["prompt_token_ids"] is None for row in last)
    assert all(row["text"] and not row["trained"] for row in last)
    assert all(json.loads(row["info"])["usage"]["completion_tokens"] == 4 for row in last)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    record = next(one for one in steps if one.get("step") == 2 and one["kind"] == "step")
    assert record["agent/last/tokens"] == 4.0
    assert record["policy/b/completion_tokens"] == 48
    assert record["policy/b/usd"] == pytest.approx(48 * 5e-6)
    assert record["policy/a/grad_norm"] > 0
    spent = json.loads((folder / "spent-b.json").read_text())
    assert spent["tokens"] == 104 * sum(a.number % 7 != 1 for a in server.of(CHAT))
    capsys.readouterr()
    assert command("show", folder) == 0
    assert "last" in capsys.readouterr().out
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(KEY.encode() not in path.read_bytes() for path in files)
    assert "JUDGE_KEY" in (folder / "config.yaml").read_text()


@pytest.mark.parametrize("name", ["at_grpo", "counterfactual", "mappo"])
def test_candidates_replays_and_critics_know_turns_without_tokens(model_folder, tmp_path, name):
    with serving(letters) as server:
        config = judged(case(model_folder, name, trainer={"steps": 1}), server.url)
        display = train(config, tmp_path / "run")
    assert display.last["policy/a/grad_norm"] > 0
    rows = pq.read_table(tmp_path / "run/episodes/step-000001.parquet").to_pylist()
    last = [row for row in rows if row["agent"] == "last"]
    assert len(last) == (36 if name == "at_grpo" else 12)
    assert sum(row["chosen"] for row in last) == 12
    if name == "counterfactual":  # a replay asks again what it was told something else
        assert len(server.asked) > 12


def test_a_stopped_run_takes_the_judges_words_from_its_journal(model_folder, tmp_path):
    with serving(letters) as server:
        config = judged(relay_config(model_folder, evaluation={"tasks": 0}), server.url)
        config["trainer"] = {"steps": 2, "save_every": 5}
        trainer = trainer_of(config, tmp_path / "run", Display(stop_after=1))
        with pytest.raises(StoppedError):
            asyncio.run(trainer.train())
        trainer.folder.release()
        assert len(server.asked) == 12
        again = trainer_of(config, tmp_path / "run", Display())
        asyncio.run(again.train())
    assert len(server.asked) == 24
    assert again.run.accounts["b"].spent.tokens == 24 * 104
    assert "policy" not in saved(tmp_path / "run")
    assert (tmp_path / "run/spent-b.json").exists()


@pytest.mark.evidence
def test_a_spent_budget_ends_the_run_and_a_larger_one_continues_it(model_folder, tmp_path, capsys):
    """Also across a resume: 36 answers of 104 tokens are needed, and 20 are granted at first.

    Two are asked for at once, so when the budget ends the run the answer to one more may be under
    way, which nobody waits for.
    """
    file, folder = tmp_path / "c.yaml", tmp_path / "run"

    def spent() -> int:
        return json.loads((folder / "spent-b.json").read_text())["tokens"]

    with serving(letters) as server:
        settings = {"evaluation": {"tasks": 0}, "rollout": {"concurrency": 2}}
        config = judged(relay_config(model_folder, **settings), server.url, budget_tokens=2000)
        write(file, config)
        assert command("train", file, "--output", folder) != 0
        found = capsys.readouterr()
        told = " ".join((found.out + found.err).split())
        assert "policies.b.engine: the budget of 2000 tokens is spent" in told
        assert "Traceback" not in told
        asked = len(server.of(CHAT))
        assert 20 <= asked <= 22
        abandoned = asked - spent() // 104
        assert abandoned in (0, 1)
        assert command("train", folder) != 0
        assert len(server.of(CHAT)) == asked
        assert command("train", folder, "policies.b.engine.budget_tokens=10000") == 0
        assert 36 <= len(server.of(CHAT)) <= 38
    assert spent() == (len(server.of(CHAT)) - abandoned) * 104


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (lambda asked: refused(401, f"bad key {KEY}"), "/v1 refuses the key: HTTP 401"),
        (
            lambda asked: {"data": []} if asked.method == "GET" else refused(404, "no model m"),
            "knows no such model or path: HTTP 404",
        ),
    ],
)
def test_a_wrong_key_or_model_ends_the_run_in_one_line(model_folder, tmp_path, capsys, rule, told):
    with serving(rule) as server:
        config = judged(relay_config(model_folder), server.url)
        assert command("train", write(tmp_path / "c.yaml", config)) != 0
    found = capsys.readouterr()
    shown = " ".join((found.out + found.err).split())
    assert told in shown
    assert "Traceback" not in shown
    assert KEY not in shown


def test_a_missing_key_and_a_missing_server_are_told_before_anything_is_played(
    model_folder, tmp_path, capsys, monkeypatch
):
    config = judged(relay_config(model_folder), nobody(), timeout_s=0.3)
    assert command("train", write(tmp_path / "c.yaml", config)) == 2
    assert "gave no answer" in " ".join(capsys.readouterr().err.split())
    monkeypatch.delenv("JUDGE_KEY")
    assert command("train", tmp_path / "c.yaml") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "policies.b.engine.key_env: the environment variable JUDGE_KEY is not set" in told


def test_tools_in_tags_are_called_by_an_agent_without_tokens(model_folder, tmp_path):
    def rule(asked: Asked):
        last = asked.body["messages"][-1]
        if "<tool_response>" in last["content"]:
            assert last["role"] == "user"
            return chat(last["content"].split("\n")[1])
        call = {"name": "calculator", "arguments": {"expression": "6 * 7"}}
        return chat(f"<tool_call>{json.dumps(call)}</tool_call>")

    with serving(rule) as server:
        config = judged(relay_config(model_folder, evaluation={"tasks": 0}), server.url)
        config["trainer"] = {"steps": 1}
        config["team"]["last"]["tools"] = {"use": ["calculator"], "format": "tags"}
        config["rewards"] = {f"{Path(__file__).parents[1]}/toy.py:wordy": 1.0}
        train(config, tmp_path / "run")
    assert "calculator" in server.asked[0].body["messages"][0]["content"]
    rows = pq.read_table(tmp_path / "run/episodes/step-000001.parquet").to_pylist()
    texts = [row["text"] for row in rows if row["agent"] == "last"]
    assert len(texts) == 24
    assert texts[1::2] == ["42"] * 12


def test_an_agent_with_a_base_gets_tokens(model_folder, tmp_path):
    """And its own earlier words go back as the tokens they were."""
    seen: list[list[int]] = []

    def rule(asked: Asked):
        seen.append(asked.body["prompt"])
        choice = {"finish_reason": "stop", "token_ids": [70, 71, 0],
                  "logprobs": {"token_logprobs": [-1.0, -2.0, -0.5]}}  # fmt: skip
        return {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}

    with serving(rule) as server:
        config = judged(relay_config(model_folder, evaluation={"tasks": 0}), server.url)
        config["policies"]["b"]["base"] = str(model_folder)
        config["trainer"] = {"steps": 1}
        train(config, tmp_path / "run")
    rows = pq.read_table(tmp_path / "run/episodes/step-000001.parquet").to_pylist()
    last = [row for row in rows if row["agent"] == "last"]
    assert sorted(row["prompt_token_ids"] for row in last) == sorted(seen)
    assert {tuple(row["token_ids"]) for row in last} == {(70, 71, 0)}
    assert {tuple(row["logprobs"]) for row in last} == {(-1.0, -2.0, -0.5)}


def play(server, *calls, swap=None, recorded=None, **options):
    """-> the episode of an agent that is asked one thing after the other."""
    engine = OpenAIEngine(
        OpenAIEngineConfig(url=f"{server.url}/v1", model="m"), policies=["j"], key=None
    )
    speaker = agent("judge", Policy("j", None, engine), sampling=Sampling(), **options)
    made = episode(0, [], {})

    async def go():
        team = Team({"judge": speaker}, episode=made, call_seed=3, swap=swap, recorded=recorded)
        with call_tree.enter_scope((), barrier=call_tree.IdleBarrier()):
            for call in calls:
                await team.judge(call)
        await engine.close()

    asyncio.run(go())
    return made


def test_memory_sends_what_was_said_before_as_text():
    with serving(lambda asked: chat(f"<think>hm</think>answer {asked.number}")) as server:
        made = play(server, "first?", "second?", memory=True, parser=lambda turn: turn.text)
    assert server.asked[1].body["messages"] == [
        {"role": "user", "content": "first?"}, {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "second?"},
    ]  # fmt: skip
    assert [turn.visible for turn in made.turns] == ["answer 1", "answer 2"]
    assert all(turn.valid and turn.tokens is None for turn in made.turns)
    again = from_json(to_json(made))
    assert [turn.usage for turn in again.turns] == [turn.usage for turn in made.turns]
    assert again.turns[1].messages == made.turns[1].messages


def test_a_replay_asks_only_what_it_was_not_asked_before():
    with serving(lambda asked: chat(f"answer {asked.number}")) as server:
        made = play(server, "first?", "second?", memory=True)
        recorded = {turn.path: turn for turn in made.turns}
        swap = Swap((9,), "")
        same = play(server, "first?", "second?", memory=True, recorded=recorded, swap=swap)
        assert [turn.text for turn in same.turns] == [turn.text for turn in made.turns]
        assert len(server.asked) == 2
        swap = Swap((0,), "given")
        other = play(server, "first?", "second?", memory=True, recorded=recorded, swap=swap)
    assert [turn.text for turn in other.turns] == ["given", "answer 3"]
    assert server.asked[2].body["messages"][1]["content"] == "given"


def test_refusals_are_counted_and_cut_answers_are_not_read():
    replies = [chat(None, refusal="No."), chat("<answer>4", finish="length")]
    with serving(lambda asked: replies[asked.number - 1]) as server:
        made = play(server, "a?", "b?", parser=lambda turn: turn.text, invalid_penalty=0.5)
    assert made.metrics["count/refused"] == 1
    assert [turn.valid for turn in made.turns] == [True, False]
    assert made.turns[1].rewards == {"invalid": -0.5}
