"""A tiny package in the place of gem, for tests of the processes of worlds."""

from __future__ import annotations

from pathlib import Path

REGISTRATION = """
import os, random, time
ENV_REGISTRY = {}

class Spec:
    entry_point = None

class Draw:
    def __init__(self, most=1000):
        self.most = most
        if most == 0:
            raise LookupError("Resource words not found.\\n >>> nltk.download('words')")

    def reset(self, seed):
        random.seed(seed)
        return "Draw.", {"suffix": "Go on."}

    def step(self, action):
        if action == "die":
            os._exit(0)
        if action == "hang":
            time.sleep(600)
        if action == "crash":
            raise KeyError("crashed\\nbadly")
        return str(random.randint(1, self.most)), 0.25, action == "last", False, {}

ENV_REGISTRY["toy:Draw-v0"] = Spec()
"""


def write_toy_gem(folder: Path) -> str:
    """Write a package `gem` with the environment `toy:Draw-v0`; returns the path to import from."""
    (folder / "gem/envs").mkdir(parents=True)
    (folder / "gem/__init__.py").write_text(
        "from gem.envs.registration import Draw\ndef make(id, **options): return Draw(**options)\n"
    )
    (folder / "gem/envs/__init__.py").write_text("")
    (folder / "gem/envs/registration.py").write_text(REGISTRATION)
    return str(folder)
