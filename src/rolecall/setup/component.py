"""Holds something that a config names: an environment, reward, tool, tracker or algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rolecall.config import registry
from rolecall.config.schema import Named
from rolecall.config.user_code_location import UserCallable, as_users_error
from rolecall.core.json_types import Options


@dataclass(frozen=True, slots=True)
class Component:
    """A resolved name, and options of the types that its signature asks for."""

    key: str  # of the config
    call: UserCallable  # a class or a function
    options: Options

    def make(self, *arguments: Any) -> Any:
        """Make the part; raises ConfigError that names the key if the options do not fit."""
        with as_users_error(f"{self.key}: "):
            return self.call(*arguments, **self.options)


def resolve_component(
    kind: str, named: Named, *, key: str, name_key: str = "", skip: int = 0
) -> Component:
    """Resolve a name and check its options; the first `skip` arguments are no options.

    `name_key`: what an error about the name itself names; by default `key`.name. Raises
    ConfigError.
    """
    call = registry.resolve(kind, named.name, key=name_key or f"{key}.name")
    return Component(key, call, registry.check_options(call, named.options, key=key, skip=skip))
