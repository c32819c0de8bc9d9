"""Names the actions of a Gymnasium space for agents, and reads an action from a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rolecall.config import registry
from rolecall.core.optional import optional
from rolecall.core.tags import visible
from rolecall.environments.games.environment import BRACKETS

Show = Callable[[Any], str]  # an observation as text


@dataclass(frozen=True, slots=True)
class Actions:
    """Names of a Discrete space in its order; or none: any text of a Text space."""

    space: Any  # gymnasium.spaces.Space
    names: tuple[str, ...]

    @property
    def description(self) -> str:
        """The text that tells an agent its actions."""
        if not self.names:
            return "Write your action and nothing else."
        return "You may: " + ", ".join(f"[{name}]" for name in self.names)

    def read(self, text: str) -> Any | None:
        """Return the one action that the text names; None for none, several or an unknown one.

        With the names ("left", "right"): read("I go [Left].") -> 0, read("left") -> None.
        """
        if not self.names:
            answer = visible(text)
            return answer if self.space.contains(answer) else None
        named = {name.strip().casefold() for name in BRACKETS.findall(visible(text))}
        if len(named) != 1 or not named <= {*self.names}:
            return None
        return int(self.space.start) + self.names.index(named.pop())


def describe_actions(space: Any, names: Sequence[str] | None) -> Actions:
    """Describe the actions of a space.

    Raises ValueError for a space of another kind, and for names that do not fit it.
    """
    spaces = optional("gymnasium.spaces", extra="gym")
    if isinstance(space, spaces.Text):
        if names is not None:
            raise ValueError("actions have no names where any text is an action")
        return Actions(space, ())
    if not isinstance(space, spaces.Discrete):
        raise ValueError(f"actions must be Discrete or Text, not {space}")
    number, start = int(space.n), int(space.start)
    labels = names if names is not None else [str(start + index) for index in range(number)]
    named = tuple(name.strip().casefold() for name in labels)
    if len({*named}) != number or len(named) != number:
        raise ValueError(f"{number} different names of actions are needed, got {list(labels)}")
    return Actions(space, named)


def choose_display(path: str | None, *, key: str) -> Show:
    """Import the display function at `path`, by default `str`; raises ConfigError naming `key`."""
    return str if path is None else registry.import_object(path, key=key)
