"""Makes the rewards of a config by name, with their weights."""

from __future__ import annotations

import inspect

from rolecall.config import registry
from rolecall.config.schema import Named, RewardConfig
from rolecall.config.user_code_location import UserCallable, locate_definition
from rolecall.core.errors import ConfigError
from rolecall.rollout.episodes import Reward
from rolecall.setup.chat_models import ChatModels, fill_in
from rolecall.setup.component import Component


def reward_component(name: str, given: float | RewardConfig) -> tuple[Component | Reward, float]:
    """Return a class with its options, or a function, and its weight. Raises ConfigError."""
    weight = given if isinstance(given, float) else given.weight
    options = {} if isinstance(given, float) else given.options
    resolved = registry.resolve("reward", name, key="rewards")
    _check_async(resolved, name)
    if not isinstance(resolved, type):
        if options:
            raise ConfigError(f"rewards.{name}: {next(iter(options))!r} has no effect; remove it")
        function: Reward = resolved
        return function, weight
    named = Named(name=name, **options)
    checked = registry.check_options(resolved, named.options, key=f"rewards.{name}", skip=0)
    if getattr(resolved, "weighs_itself", False) and weight != 1.0:
        raise ConfigError(
            f"rewards.{name}.weight has no effect: it has weights of its own; remove it"
        )
    return Component(f"rewards.{name}", resolved, checked), weight


def _check_async(found: UserCallable, name: str) -> None:
    """Check that a function, or a class's `__call__`, is `async`; raises ConfigError otherwise."""
    call = vars(found).get("__call__") if isinstance(found, type) else found
    if inspect.isfunction(call) and not inspect.iscoroutinefunction(inspect.unwrap(call)):
        kind = "its __call__" if isinstance(found, type) else "it"
        raise ConfigError(
            f"rewards: {name!r}: {kind} ({locate_definition(call)}) is not an async function; "
            "write `async def`"
        )


def make_reward(part: Component | Reward, models: ChatModels) -> Reward:
    """Make a reward; raises ConfigError if its options do not fit after all."""
    reward: Reward = fill_in(part, models).make() if isinstance(part, Component) else part
    return reward
