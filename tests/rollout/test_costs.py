"""What an evaluation took of each agent, and what that cost."""

from __future__ import annotations

import io
import json

import pytest

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.engines.prices import find_prices
from rolecall.monitor.terminal import show_evaluation
from rolecall.rollout.costs import Costs
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.spending import Prices
from rolecall.setup.plan import validate
from tests.toy import command, episode, relay_config, turn, write

SERVER = {"name": "openai", "url": "http://127.0.0.1:9", "model": "m"}


def test_tokens_and_seconds_are_counted_by_agent():
    own = turn("solver", prompt=(1, 2, 3), tokens=(4, 5), policy="p")
    served = turn("judge", path=(1,), policy="paid")
    served.prompt = served.tokens = None
    served.usage = {"prompt_tokens": 1000, "cached_tokens": 400, "completion_tokens": 50}
    one = episode(0, [own, served], {})
    one.metrics = {"call_s/solver": 3.0, "call_s/judge": 1.0, "call_s/nobody": 9.0}
    other = episode(1, [turn("solver", prompt=(1,), tokens=(2,), policy="p")], {})
    other.metrics = {"call_s/solver": 1.0}
    costs = Costs({"paid": Prices(prompt=2.0, cached=0.5, completion=10.0)})
    costs.add([one, other])
    found = costs.summary()
    assert found["by_agent"]["solver"] == {"turns": 2, "prompt_tokens": 4, "sampled_tokens": 3}
    assert found["by_agent"]["judge"]["usd"] == pytest.approx(0.0012 + 0.0002 + 0.0005)
    assert "usd" not in found  # the solver's price is not known
    assert found["prompt_tokens"] == 1004
    assert costs.latencies() == {"time/latency_s/judge": 1.0, "time/latency_s/solver": 2.0}


def test_an_evaluation_says_what_each_agent_cost(model_folder, tmp_path, capsys):
    price = {"prompt": 1e6, "completion": 0.0}
    config = relay_config(model_folder, prices={"a": price, "b": price})
    path = write(tmp_path / "c.yaml", config)
    assert command("eval", path, "--json", tmp_path / "found.json") == 0
    found = json.loads((tmp_path / "found.json").read_text())
    cost = found["cost"]
    assert cost["by_agent"]["last"]["turns"] == 4  # two tasks, two attempts
    assert (
        cost["usd"]
        == cost["prompt_tokens"]
        == sum(part["prompt_tokens"] for part in cost["by_agent"].values())
    )
    assert 0 < cost["sampled_tokens"] <= 12 * 8
    assert 0 < found["time/latency_s/last"] <= found["time/evaluation_s"]
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["cost"][-1] == "USD"
    assert rows["last"][0] == "4"
    assert rows["all"][-1] == f"{cost['usd']:.4g}"


def test_costs_of_large_evaluations_fit_a_terminal_of_80_columns():
    part = {"turns": 1_234_567, "prompt_tokens": 9_876_543_210, "sampled_tokens": 123_456_789}
    agents = {"solver": {**part, "usd": 1234.5}, "a_verifier_of_proofs": part}
    record = {
        "when": "latest", "split": "test", "num_tasks": 1680,
        "cost": {**part, "by_agent": agents}, "time/latency_s/solver": 1.05,
        "time/evaluation_s": 14.7,
    }  # fmt: skip
    out = io.StringIO()
    show_evaluation(record, console=PlainConsole(file=out, width=80))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert all(len(line) <= 80 for line in lines)
    assert lines[-4].split() == [
        "solver", "1,234,567", "9,876,543,210", "123,456,789", "1.05", "1234"
    ]  # fmt: skip
    assert lines[-2].split()[:3] == ["all", "agents", "1,234,567"]
    assert lines[-1] == "  evaluated in 14.7 s"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prices": {"c": {"prompt": 1.0}}}, "prices.c: there is no policy 'c'; there are: a, b"),
        ({"prices": {"a": {}}}, "prices.a has no effect: it names no price"),
    ],
)  # fmt: skip
def test_a_price_without_effect_is_refused_in_a_line(model_folder, changes, said):
    config = relay_config(model_folder, prices=changes["prices"])
    with pytest.raises(ConfigError) as error:
        validate(Config.model_validate(config))
    [line] = error.value.problems
    assert line.startswith(said)


def test_one_table_has_the_prices_of_all_policies(model_folder):
    prices = {"a": {"prompt": 1.0, "completion": 4.0}, "b": {"prompt": 2.0, "cached": 0.5}}
    config = Config.model_validate(relay_config(model_folder, prices=prices))
    assert find_prices(config) == {"a": Prices(1.0, None, 4.0), "b": Prices(2.0, 0.5, 0.0)}


def test_a_budget_in_dollars_without_prices_is_refused_in_a_line(model_folder, tmp_path, capsys):
    config = relay_config(model_folder, rewards={"coach": {"policy": "judge"}})
    config["policies"]["judge"] = {"engine": SERVER | {"budget_usd": 1.0}}
    assert command("eval", write(tmp_path / "c.yaml", config)) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "price" in line
