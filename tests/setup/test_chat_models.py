"""Frozen policies that rewards and environments name: what is refused, and whole runs with them."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.setup.build import build
from rolecall.setup.open_environment import open_components
from rolecall.setup.plan import validate
from tests import toy
from tests.algorithms.test_every_algorithm import train
from tests.engines.servers import Asked, chat, claude, serving
from tests.toy import relay_config

pytestmark = pytest.mark.slow

SERVER = {"name": "openai", "url": "http://127.0.0.1:9/v1", "model": "m"}
CHAT = "/v1/chat/completions"


def problems(config: dict) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        validate(Config.model_validate(config))
    return list(raised.value.problems)


def coached(config: dict, judge: dict, **options) -> dict:
    config["policies"]["judge"] = judge
    return config | {"rewards": {"coach": {"policy": "judge"} | options}}


def test_a_policy_that_only_a_coach_names_is_accepted(model_folder):
    config = coached(relay_config(model_folder), {"engine": SERVER})
    plan = validate(Config.model_validate(config))
    assert plan.chat_policies == {"rewards.coach.policy": "judge"}
    assert plan.config.deterministic, "what agents sample does not depend on the server"
    del config["rewards"]
    [line] = problems(config)
    assert line.startswith("policies.judge: no agent speaks with it, and no reward or environment")


def test_a_server_beside_an_exact_engine_leaves_the_comparison_with_the_learner_exact(model_folder):
    config = coached(relay_config(model_folder), {"engine": SERVER})
    run = build(validate(Config.model_validate(config)))
    assert "exact" in run.engine.can
    assert set(run.accounts) == {"judge"}


def test_only_a_frozen_policy_can_be_asked(model_folder):
    config = relay_config(model_folder, rewards={"coach": {"policy": "a"}})
    assert problems(config) == [
        "rewards.coach.policy: policy 'a' is trained, and what judges or answers must stay the "
        "same; write a policy that no trainable agent speaks with"
    ]
    config["rewards"]["coach"]["policy"] = "c"
    assert problems(config) == ["rewards.coach.policy: there is no policy 'c'; there are: a, b"]
    config["rewards"] = {"correct": 1.0}
    config["policies"]["b"]["replies"] = {"temperature": 0.5}
    [line] = problems(config)
    assert line.startswith("policies.b.replies has no effect: no reward and no environment names")


@pytest.mark.parametrize(
    ("engine", "agent", "told"),
    [
        ({"name": "anthropic"}, {}, "team.last.trainable: https://api.anthropic.com takes no new"),
        ({"name": "google"}, {}, "team.last.trainable: google takes no new weights, so policy 'b'"),
        (
            {"name": "anthropic"}, {"trainable": False, "sampling": {"stop": ["x"]}},
            "team.last.sampling.stop has no effect: engine anthropic is sent temperature",
        ),
        (
            {"name": "google"},
            {"trainable": False, "tools": {"use": ["calculator"], "format": "native"}},
            "team.last.tools.format: native calls need a chat template, and engine google is sent",
        ),
    ],
)  # fmt: skip
def test_what_a_provider_cannot_do_for_an_agent_is_refused_in_a_line(
    model_folder, engine, agent, told
):
    config = relay_config(model_folder)
    config["policies"]["b"] = {"engine": engine | {"model": "m"}}
    config["team"]["last"] |= agent
    [line] = problems(config)
    assert line.startswith(told)


def test_a_base_beside_a_provider_of_messages_is_refused(model_folder):
    judge = {"base": "tiny:math", "engine": {"name": "anthropic", "model": "m"}}
    [line] = problems(coached(relay_config(model_folder), judge))
    assert line.startswith("policies.judge.base has no effect: engine anthropic is sent messages")


def test_a_missing_key_is_named_before_anything_is_loaded(model_folder, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    judge = {"engine": SERVER | {"key_env": "NO_SUCH_KEY"}}
    plan = validate(Config.model_validate(coached(relay_config(model_folder), judge)))
    with pytest.raises(ConfigError) as raised:
        open_components(plan)
    assert list(raised.value.problems) == [
        "policies.judge.engine.key_env: the environment variable NO_SUCH_KEY is not set"
    ]


def test_an_agent_may_speak_by_a_provider_of_messages(model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret-1")
    with serving(lambda asked: claude("".join(sorted(str(asked.number))))) as server:
        config = relay_config(model_folder, evaluation={"tasks": 0}, trainer={"steps": 1})
        config["policies"]["b"] = {"engine": {"name": "anthropic", "url": server.url, "model": "m"}}
        config["team"]["last"]["trainable"] = False
        config["prices"] = {"b": {"prompt": 1.0, "completion": 1.0}}
        config["rewards"] = {f"{toy.__file__}:wordy": 1.0}
        display = train(config, tmp_path / "run")
    assert display.last["policy/b/usd"] == pytest.approx(12 * 110e-6)
    rows = pq.read_table(tmp_path / "run/episodes/step-000001.parquet").to_pylist()
    last = [row for row in rows if row["agent"] == "last"]
    assert [bool(row["text"]) and row["token_ids"] is None for row in last] == [True] * 12


def test_a_part_of_a_mixture_names_its_policy(model_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"question": f"{n}?", "answer": "x"}) for n in range(4)))
    user = {"name": "llm", "policy": "judge", "system": "You are a guest."}
    config = relay_config(model_folder)
    config["policies"]["judge"] = {"engine": SERVER}
    parts = {"sums": "math", "guests": user | {"train": str(rows), "test": str(rows)}}
    config["environment"] = {"name": "mixed", "of": parts}
    plan = validate(Config.model_validate(config))
    assert plan.chat_policies == {"environment.of.guests.policy": "judge"}
    opened = open_components(plan)
    assert opened.environment.parts["guests"].llm is opened.chat_models["judge"]


POLITE = """
from rolecall.core.interfaces.chat_model import ChatModel
from rolecall.core.types import Message


class Polite:
    def __init__(self, judge: ChatModel, question: str = "Polite?") -> None:
        self.judge, self.question = judge, question

    async def __call__(self, episode, world):
        schema = {"type": "object"}
        reply = await self.judge.reply(
            [Message("user", self.question + episode.answer)], seed=episode.seed, schema=schema,
            max_tokens=7,
        )
        assert (reply.model, reply.completion_tokens, reply.usd) == ("m", 4, 4e-6)
        return {"team": len(reply.text) % 5 / 5}
"""


def test_a_reward_of_ones_own_is_handed_the_chat_model_that_it_names(model_folder, tmp_path):
    (tmp_path / "polite.py").write_text(POLITE)

    def rule(asked: Asked):
        said = asked.body["messages"][-1]["content"]
        return chat("x" * (sum(map(ord, said)) % 5), answer=4)

    with serving(rule) as server:
        config = relay_config(model_folder, evaluation={"tasks": 0}, trainer={"steps": 1})
        config["policies"]["judge"] = {"engine": SERVER | {"url": f"{server.url}/v1"}}
        config["prices"] = {"judge": {"completion": 1.0}}
        config["rewards"] = {f"{tmp_path}/polite.py:Polite": {"judge": "judge"}}
        train(config, tmp_path / "run")
    bodies = [asked.body for asked in server.of(CHAT)]
    assert len(bodies) == 12
    assert {body["max_completion_tokens"] for body in bodies} == {7}
    assert all("response_format" in body and "temperature" not in body for body in bodies)


def test_a_local_base_coaches_while_its_episodes_go_on(model_folder, tmp_path):
    """Agents wait for its words, so its engine steps while they do; twice the same run."""
    options = {"when": "after_action", "show_to": ["last"], "on_error": "outcome_only",
               "w_outcome": 0.5, "answers": {"max_error_rate": 1.0}}  # fmt: skip
    seen = []
    for number in range(2):
        config = relay_config(model_folder, evaluation={"tasks": 0}, trainer={"steps": 1})
        judge = {"base": str(model_folder), "replies": {"max_tokens": 6}}
        config = coached(config, judge, **options)
        train(config, tmp_path / f"run{number}")
        rows = pq.read_table(tmp_path / f"run{number}/episodes/step-000001.parquet").to_pylist()
        assert all("answers; last:" in json.loads(row["info"])["coach_error"] for row in rows)
        seen.append([(row["text"], row["token_ids"]) for row in rows])
    assert seen[0] == seen[1]


def test_a_local_base_is_a_simulated_user(model_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"question": f"{n}?", "answer": "x"}) for n in range(4)))
    config = relay_config(model_folder, evaluation={"tasks": 0}, trainer={"steps": 1})
    config["team"] = {"actor": {"policy": "a", "sampling": {"max_tokens": 8}}}
    config["policies"] = {
        "a": config["policies"]["a"],
        "guest": {"base": "tiny:math", "replies": {"temperature": 0.0, "max_tokens": 64}},
    }
    config["workflow"] = {"name": "multi_turn", "max_turns": 2}
    config["environment"] = {
        "name": "llm", "policy": "guest", "system": "You are a guest.", "done": "",
        "train": str(rows), "test": str(rows), "opens": True,
    }  # fmt: skip
    config["rewards"] = {f"{toy.__file__}:wordy": 1.0}
    train(config, tmp_path / "run")
    rows = pq.read_table(tmp_path / "run/episodes/step-000001.parquet").to_pylist()
    assert all(json.loads(row["info"])["observation"] for row in rows)
    assert len(rows) == 24
