"""What a coach has spent counts when a run that was stopped goes on."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from rolecall.runtime.spending import Account, Budget, Prices
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


def coached(folder, url: str, **options) -> dict:
    """Two steps of 12 episodes, each with three actions that the coach scores, two at once."""
    config = relay_config(folder, evaluation={"tasks": 0}, rollout={"concurrency": 2})
    config["trainer"] = {"steps": 2, "save_every": 1}
    given = {"model": "m", "base_url": f"{url}/v1", "key_env": "COACH_KEY", "concurrency": 2}
    return config | {"rewards": {"coach": given | options}}


def spent(folder) -> dict:
    return json.loads((folder / "spent-rewards.coach.json").read_text())


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
        assert f"the coach's budget of {20 * ANSWER} tokens for the run is spent" in told
        assert "continue the run with a larger rewards.coach.budget_tokens" in told
        assert "Traceback" not in told
        asked = len(server.of(CHAT))
        assert 20 <= asked <= 22
        assert 20 * ANSWER <= spent(folder)["tokens"] <= asked * ANSWER
        assert command("train", folder) != 0
        assert len(server.of(CHAT)) == asked
        assert command("train", folder, "rewards.coach.budget_tokens=100000") == 0
        assert spent(folder)["tokens"] >= 72 * ANSWER
    assert server.of(CHAT)


def test_a_stopped_run_goes_on_with_what_it_had_spent_in_all_and_in_its_steps(
    model_folder, tmp_path
):
    folder = tmp_path / "run"
    with serving(scores) as server:
        config = coached(model_folder, server.url, price_completion=1.0)
        trainer = trainer_of(config, folder, Display(stop_after=1))
        with pytest.raises(StoppedError):
            asyncio.run(trainer.train())
        trainer.folder.release()
        assert spent(folder)["parts"] == {
            "1": {"usd": pytest.approx(36 * 4e-6), "tokens": 36 * ANSWER}
        }
        again = trainer_of(config, folder, Display())
        [account] = again.run.accounts.values()
        assert account.spent.tokens == 36 * ANSWER
        asyncio.run(again.train())
    assert len(server.of(CHAT)) == 72
    assert account.spent.tokens == spent(folder)["tokens"] == 72 * ANSWER
    assert spent(folder)["usd"] == pytest.approx(72 * 4e-6)


def test_a_step_that_has_used_its_budget_stops_again(model_folder, tmp_path):
    file, folder = tmp_path / "c.yaml", tmp_path / "run"
    with serving(scores) as server:
        write(file, coached(model_folder, server.url, step_budget_tokens=5 * ANSWER))
        assert command("train", file, "--output", folder) != 0
        asked = len(server.of(CHAT))
        assert 5 <= asked <= 7
        assert command("train", folder) != 0
        assert len(server.of(CHAT)) == asked


def test_an_account_reads_what_was_written_before_it_knew_of_parts(tmp_path):
    (tmp_path / "spent.json").write_text('{"usd": 0.5, "tokens": 7}')
    account = Account(Prices(), Budget(None, None))
    account.keep(tmp_path / "spent.json")
    assert (account.spent.usd, account.spent.tokens, account.parts) == (0.5, 7, {})


@pytest.mark.parametrize(("budget", "unit"), [((-1.0, None), "USD"), ((None, 0), "tokens")])
def test_a_budget_that_allows_nothing_is_refused_with_its_unit(budget, unit):
    with pytest.raises(ValueError, match=rf"a budget in {unit} must be above 0 \(it is (-1|0)\); "):
        Budget(*budget)
