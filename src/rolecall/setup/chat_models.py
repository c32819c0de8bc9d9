"""Finds the policies that rewards and environments ask, and makes chat models of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rolecall.agents.agent import Policy
from rolecall.agents.policy_chat import PolicyChat
from rolecall.config import registry
from rolecall.config.schema import Config, ReplyConfig
from rolecall.config.served import (
    GoogleEngineConfig,
    OpenAIEngineConfig,
    ProviderEngineConfig,
    ServedEngineConfig,
)
from rolecall.config.user_code_location import UserCallable
from rolecall.core.errors import ConfigError, nearest
from rolecall.core.json_types import Options
from rolecall.engines.prices import find_prices
from rolecall.environments.mixed import MixedEnvironment
from rolecall.environments.mixed import Part as MixedPart
from rolecall.runtime.spending import Prices
from rolecall.setup.component import Component

Problems = Iterator[str]
ChatModels = dict[str, PolicyChat]  # by policy


def find_named_policies(part: Component) -> dict[str, str]:
    """Return the policies that a reward or an environment names, by the keys that name them."""
    names = _find_names(part.key, part.call, part.options)
    for name, section in _list_sections(part).items():
        names |= _find_names(f"{part.key}.of.{name}", _resolve(section), section.options)
    return names


def fill_in(part: Component, models: ChatModels) -> Component:
    """Return a part with chat models in the place of their names."""
    options = part.options | _find_models(part.call, part.options, models)
    if sections := _list_sections(part):
        options["of"] = {
            name: section.model_copy(
                update=_find_models(_resolve(section), section.options, models)
            )
            for name, section in sections.items()
        }
    return replace(part, options=options)


def _find_names(key: str, call: UserCallable, options: Options) -> dict[str, str]:
    asked = [option for option in registry.list_chat_options(call) if option in options]
    return {f"{key}.{n}": options[n] for n in asked if isinstance(options[n], str)}


def _find_models(call: UserCallable, options: Options, models: ChatModels) -> Options:
    return {key[1:]: models[name] for key, name in _find_names("", call, options).items()}


def _list_sections(part: Component) -> dict[str, MixedPart]:
    """Return the parts of a mixture by name."""
    sections: dict[str, MixedPart] = part.options["of"] if part.call is MixedEnvironment else {}
    return sections


def _resolve(section: MixedPart) -> Any:
    """Return the class of a mixture's part; `dict`, which asks nobody, for a wrong name."""
    try:
        return registry.resolve("environment", section.name, key="environment")
    except ConfigError:  # which the mixture itself tells
        return dict


def check_chat_models(config: Config, named: Mapping[str, str], used: Collection[str]) -> Problems:
    """Check that the policies that are asked are there and frozen.

    `named`: policies by the keys that name them; `used`: those that may be named.
    """
    for key, name in named.items():
        if name not in config.policies:
            near = nearest(name, list(config.policies))
            yield f"{key}: there is no policy {name!r}; {near}"
        elif name in config.trained_policies:
            yield (
                f"{key}: policy {name!r} is trained, and what judges or answers must stay the "
                "same; write a policy that no trainable agent speaks with"
            )
        elif config.policies[name].opponent_pool is not None:
            yield f"{key}: policy {name!r} plays earlier weights of others; write another policy"
    for name, policy in config.policies.items():
        if policy.replies is not None and name not in used:
            yield (
                f"policies.{name}.replies has no effect: no reward and no environment names this "
                "policy; remove it, or write team.AGENT.sampling"
            )


def make_chat_models(config: Config, named: Mapping[str, str]) -> ChatModels:
    """Return the chat models of these policies, which reply once they have their engines."""
    prices = find_prices(config)
    return {
        name: _chat_model(config, name, prices.get(name, Prices()))
        for name in dict.fromkeys(named.values())
    }


def _chat_model(config: Config, name: str, prices: Prices) -> PolicyChat:
    policy, engine = config.policies[name], config.get_engine(name)
    replies = policy.replies or ReplyConfig()
    served = isinstance(engine, ProviderEngineConfig)
    model = engine.model if isinstance(engine, ProviderEngineConfig) else policy.base
    extra = engine.extra if isinstance(engine, OpenAIEngineConfig) else {}
    if isinstance(engine, GoogleEngineConfig) and engine.thinking_budget is not None:
        extra = {"thinking_budget": engine.thinking_budget}
    identity = [engine.name if served else "base", model, policy.template, extra]
    return PolicyChat(
        name,
        model=model,
        is_local=not isinstance(engine, ServedEngineConfig),
        identity=repr([*identity, replies.temperature, replies.max_tokens]),
        temperature=replies.temperature,
        max_tokens=replies.max_tokens,
        prices=prices,
    )


def connect(models: ChatModels, policies: Mapping[str, Policy]) -> None:
    """Let chat models reply with the engines of their policies."""
    for name, model in models.items():
        model.policy = policies[name]
