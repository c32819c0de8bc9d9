"""A frozen policy behind an API, as setup makes one for a coach, a judge or a simulated user."""

from __future__ import annotations

from rolecall.agents.agent import Policy
from rolecall.agents.policy_chat import PolicyChat
from rolecall.config.schema import Config
from rolecall.engines.backend import engine_backend
from rolecall.engines.inputs import EngineInputs
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup.chat_models import connect, make_chat_models


def judge_config(url: str, *, engine=(), replies=(), prices=(), **keys) -> Config:
    """A config in which no agent speaks with the policy `judge`."""
    given = {"name": "openai", "url": url, "model": "m", "key_env": "COACH_KEY"}
    given |= {"pause_s": 0.01, "timeout_s": 20.0} | dict(engine)
    judge = {"engine": given, "replies": dict(replies)} | keys
    return Config.model_validate({
        "team": {"solver": {"policy": "small"}},
        "policies": {"small": {"base": "tiny:math"}, "judge": judge},
        "prices": {"judge": dict(prices)} if prices else {},
        "workflow": "single", "environment": "math", "algorithm": "grpo",
    })  # fmt: skip


def chat_model(config: Config) -> PolicyChat:
    """The policy `judge` of a config, behind its provider's API."""
    models = make_chat_models(config, {"rewards.coach.policy": "judge"})
    engine = engine_backend(config, ["judge"]).make(EngineInputs({}, IdleBarrier()))
    connect(models, {"judge": Policy("judge", None, engine)})
    return models["judge"]
