"""What a coach has spent counts when a run that was stopped goes on."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from rolecall.runtime.spending import Account, Budget
from tests.algorithms.test_every_algorithm import Display, StoppedError, trainer_of
from tests.engines.servers import Asked, chat, serving
from tests.toy import command, relay_config, write

pytestmark = pytest.mark.slow

ANSWER = 104  # tokens of one, as the server counts them
CHAT = "/v1/chat/completions"


def scores(asked: Asked):
    if asked.method == "GET":
        return {"data": []}
    [code] = re.findall(r"Request code: (\w+)", asked.body["messages"][-1]["content"])
    score = {"reasoning": "r", "process_score": int(code, 16) % 11, "request": code}
    return chat(json.dumps(score), answer=4)


def coached(folder, url: str, *, when="after_episode", **engine) -> dict:
    """Two steps of 12 episodes, each with three actions that the coach scores, two at once."""
    config = relay_config(folder, evaluation={"tasks": 0}, rollout={"concurrency": 2})
    config["trainer"] = {"steps": 2, "save_every": 1}
    given = {"name": "openai", "model": "m", "url": f"{url}/v1", "key_env": "COACH_KEY"}
    config["policies"]["judge"] = {"engine": given | {"concurrency": 2} | engine}
    return config | {"rewards": {"coach": {"policy": "judge", "when": when}}}


def spent(folder) -> dict:
    return json.loads((folder / "spent-judge.json").read_text())


@pytest.mark.evidence
def test_a_run_that_has_used_its_budget_stops_again_and_a_larger_one_continues_it(
    model_folder, tmp_path, capsys
):
    """72 answers are needed, and 20 granted at first; as many as two more may be under way."""
    file, folder = tmp_path / "c.yaml", tmp_path / "run"
    with serving(scores) as server:
        write(
            file, coached(model_folder, server.url, budget_tokens=20 * ANSWER, when="after_action")
        )
        assert command("train", file, "--output", folder) != 0
        found = capsys.readouterr()
        told = " ".join((found.out + found.err).split())
        assert f"policies.judge.engine: the budget of {20 * ANSWER} tokens is spent" in told
        assert "continue the run with a larger budget_tokens" in told
        assert "Traceback" not in told
        asked = len(server.of(CHAT))
        assert 20 <= asked <= 22
        assert 20 * ANSWER <= spent(folder)["tokens"] <= asked * ANSWER
        assert command("train", folder) != 0
        assert len(server.of(CHAT)) == asked
        assert command("train", folder, "policies.judge.engine.budget_tokens=100000") == 0
        assert spent(folder)["tokens"] >= 72 * ANSWER
    assert server.of(CHAT)


def test_a_stopped_run_goes_on_with_what_it_had_spent(model_folder, tmp_path):
    folder = tmp_path / "run"
    with serving(scores) as server:
        config = coached(model_folder, server.url) | {"prices": {"judge": {"completion": 1.0}}}
        trainer = trainer_of(config, folder, Display(stop_after=1))
        with pytest.raises(StoppedError):
            asyncio.run(trainer.train())
        trainer.folder.release()
        assert spent(folder) == {"usd": pytest.approx(36 * 4e-6), "tokens": 36 * ANSWER}
        again = trainer_of(config, folder, Display())
        [account] = again.run.accounts.values()
        assert account.spent.tokens == 36 * ANSWER
        asyncio.run(again.train())
    assert len(server.of(CHAT)) == 72
    assert account.spent.tokens == spent(folder)["tokens"] == 72 * ANSWER
    assert spent(folder)["usd"] == pytest.approx(72 * 4e-6)


def test_an_account_reads_what_an_earlier_version_wrote_of_steps(tmp_path):
    written = '{"usd": 0.5, "tokens": 7, "parts": {"1": {"usd": 0.5, "tokens": 7}}}'
    (tmp_path / "spent.json").write_text(written)
    account = Account({}, Budget(None, None))
    account.keep(tmp_path / "spent.json")
    assert (account.spent.usd, account.spent.tokens) == (0.5, 7)


@pytest.mark.parametrize(("budget", "unit"), [((-1.0, None), "USD"), ((None, 0), "tokens")])
def test_a_budget_that_allows_nothing_is_refused_with_its_unit(budget, unit):
    with pytest.raises(ValueError, match=rf"a budget in {unit} must be above 0 \(it is (-1|0)\); "):
        Budget(*budget)
