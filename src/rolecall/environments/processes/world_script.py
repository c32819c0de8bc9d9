"""Runs one world of gem or textarena in each fork of a process that has imported the package.

A script of `runtime/forking/fork_server.py` with the arguments PACKAGE and ID. A line of JSON names
a `method` (make, reset, step or close) and its `arguments`; one goes back with what it `returned`,
or with the `error`: its `type` and `message`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import random
import re
import sys
from typing import Any, TextIO

NEWLY_INSTALLED = {
    "gem": "make an environment with `pip install gem-llm==0.1.0` and name its Python",
    "textarena": "pip install 'rolecall[textarena]', or name a Python with textarena 0.7.4",
}
NLTK_DATA = re.compile(r"nltk\.download\(['\"](\w+)['\"]\)")


class Gem:
    """A world of gem, for one agent."""

    def make(self, id: str, options: dict[str, Any], seed: int) -> None:
        seed_globals(seed)
        self.env = importlib.import_module("gem").make(id, **options)

    def reset(self, seed: int) -> dict[str, object]:
        text, info = self.env.reset(seed=seed)
        return {"text": frame(text, info)}

    def step(self, action: str) -> dict[str, object]:
        text, reward, terminated, truncated, info = self.env.step(action)
        is_done = bool(terminated or truncated)
        return {"text": frame(text, info), "reward": float(reward), "is_done": is_done}


class TextArena:
    """A game of textarena, for one or several players."""

    def make(self, id: str, options: dict[str, Any], seed: int) -> None:
        seed_globals(seed)
        self.env = importlib.import_module("textarena").make(id, **options)
        self.transcripts: dict[int, str] = {}  # by player, of games whose wrappers keep none

    def reset(self, seed: int, num_players: int) -> dict[str, object]:
        self.env.reset(num_players=num_players, seed=seed)
        return self.observe()

    def step(self, action: str) -> dict[str, object]:
        player, before = self.env.state.current_player_id, self.count_errors()
        is_done, _ = self.env.step(action)
        errors = self.count_errors()
        is_illegal = errors[0] > before[0] or errors[1] > before[1]
        seen = {} if is_done else self.observe()
        return {"player": player, "is_done": bool(is_done), "is_illegal": is_illegal, **seen}

    def observe(self) -> dict[str, object]:
        """Return the player to move and all that it was shown until now."""
        player, seen = self.env.get_observation()
        if isinstance(seen, str):
            return {"player": player, "view": seen.strip()}
        names = self.env.state.role_mapping
        for sender, message, _ in seen:
            name = "GAME" if sender < 0 else names.get(sender, f"Player {sender}")
            self.transcripts[player] = f"{self.transcripts.get(player, '')}\n[{name}] {message}"
        return {"player": player, "view": self.transcripts.get(player, "").strip()}

    def count_errors(self) -> tuple[int, int]:
        """Return illegal moves in a row that were forgiven, and players who lost by one."""
        state = self.env.state
        lost = [info.get("invalid_move") for info in state.game_info.values()]
        return getattr(state, "error_count", 0), sum(map(bool, lost))

    def close(self) -> list[float] | None:
        """Return the reward of each player; None where the game has paid none."""
        rewards, _ = self.env.close()
        return rewards and [float(rewards[player]) for player in sorted(rewards)]


WORLDS = {"gem": Gem, "textarena": TextArena}


def preload(package: str, id: str) -> str:
    """Import the package and the module of the environment; returns what is wrong, or ""."""
    try:
        registry = importlib.import_module(f"{package}.envs.registration").ENV_REGISTRY
        importlib.import_module(package)
    except ImportError as error:
        return f"python: {sys.executable} has no {package} ({error}); {NEWLY_INSTALLED[package]}"
    if id not in registry:
        near = difflib.get_close_matches(id, list(registry), n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}" if near else f"it has {', '.join(sorted(registry))}"
        return f"make: {package} has no {id!r}; {hint}"
    entry = registry[id].entry_point
    if isinstance(entry, str):
        with contextlib.suppress(Exception):  # a world that is made says what it misses
            importlib.import_module(entry.partition(":")[0])
    return ""


def serve(stream: TextIO, package: str, id: str) -> None:
    """Answer what is asked of one world until the connection is closed."""
    world = WORLDS[package]()
    for line in stream:
        request = json.loads(line)
        try:
            returned = getattr(world, request["method"])(**request["arguments"])
            answer = json.dumps({"returned": returned})
        except Exception as error:
            answer = json.dumps({"error": describe(error)})
        stream.write(answer + "\n")
        stream.flush()


def describe(error: Exception) -> dict[str, str]:
    """Return the type of an error and its message as one line."""
    text = " ".join(str(error).split())
    data = NLTK_DATA.search(text)
    if isinstance(error, LookupError) and data:
        command = f"{sys.executable} -m nltk.downloader {data[1]}"
        text = f"the data {data[1]!r} of nltk is missing; run `{command}` where there is a network"
    if isinstance(error, SyntaxError):
        version = ".".join(map(str, sys.version_info[:2]))
        text += f"; Python {version} cannot read it, name a newer one under environment.python"
    return {"type": type(error).__name__, "message": text[:1000]}


def seed_globals(seed: int) -> None:
    """Seed what an environment may draw from while it is made."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def frame(text: str, info: dict[str, Any]) -> str:
    """Put the prefix and the suffix of gem's `info` around an observation, as its wrapper does."""
    line = f"{text}\n" if text and not text.endswith("\n") and info.get("suffix") else text
    return f"{info.get('prefix', '')}{line}{info.get('suffix', '')}"
