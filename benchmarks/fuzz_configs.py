"""Recipes in; each is made wrong in one or two places and run, and what came out is counted.

    python benchmarks/fuzz_configs.py [--mutations 500] [--seed 0] [--json FILE]

A mutated config may be refused with one line that names a key (status 2), or run for one small step
and end with status 0 or 1. It must not end in a traceback, hang, or be accepted although its value
means nothing: an infinite learning rate, a list where a number belongs, an unknown key. Status 1 if
one did.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from rolecall.config.load import find, load, recipe_names
from rolecall.core.errors import ConfigError

SMALL = (
    "trainer.steps=1", "rollout.groups=2", "rollout.group_size=2", "evaluation.tasks=1",
    "evaluation.samples=1",
)  # fmt: skip
KEPT = {override.partition("=")[0] for override in SMALL}  # what SMALL sets is not mutated
LONGEST_S = 120
# (replacement, whether it means nothing under every key that holds such a value)
OF_NUMBERS = [
    (math.nan, True), (math.inf, True), (-math.inf, True), (1e30, True), (-1e30, True),
    (10**30, True), ("many", True), ([1], True), ({"a": 1}, True), (-1, False), (0, False),
    (None, False), (1, False), (0.5, False), (True, False),
]  # fmt: skip
OF_TEXTS = [
    ("", False), (5, False), (None, False), ("nonsense", False), (["x"], False),
    ({"unknown": {"unknown": 1}}, True), ("\u202e\x00\x1b[2J", False), ("../../nowhere", False),
    ("a" * 100_000, False), ("{}", False), ("${oc.env:HOME}", False), ("???", False),
]  # fmt: skip
OF_TRUTHS = [("maybe", True), (7, True), (None, True), ([], True), (False, False), (True, False)]
OF_PARTS = [("text", False), (5, False), (None, False), ([], False), ([[[]]], False)]

FREE = ("team", "policies", "rewards", "template", "of")  # mappings of names of the user's own
Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """What was changed, and whether the new value means nothing."""

    what: str
    nonsense: bool


def places(part: Any, at: Place = ()) -> list[tuple[Place, Any]]:
    """Every key of a config, those of inner mappings included."""
    found = [(at, part)] if at and ".".join(at) not in KEPT else []
    if isinstance(part, dict):
        found += [pair for key, value in part.items() for pair in places(value, (*at, key))]
    return found


def keys_of(recipe: str) -> list[tuple[Place, Any]]:
    """All keys with their defaults; those that are written where a user has to say something."""
    file = find(recipe)
    try:
        return places(load(file).model_dump(mode="json"))
    except ConfigError:
        return places(yaml.safe_load(file.read_text()))


def mutate(config: dict[str, Any], keys: list[tuple[Place, Any]], chance: random.Random) -> Done:
    """Change one place of a config; `keys` are all that it could have, with their values."""
    at, value = chance.choice(keys)
    holder = _holder(config, at)
    name = ".".join(at)
    if chance.random() < 0.1 and at[-1] in holder:
        del holder[at[-1]]
        return Done(f"{name} left out", nonsense=False)
    free = "template" in at or at[-1] in FREE
    if isinstance(value, dict) and chance.random() < 0.5:
        holder[at[-1]] = {**value, f"unknown_{chance.randrange(100)}": 1}
        return Done(f"{name} has an unknown key", nonsense=not free)
    kind = (
        OF_TRUTHS if isinstance(value, bool)
        else OF_NUMBERS if isinstance(value, int | float)
        else OF_TEXTS if isinstance(value, str)
        else OF_PARTS
    )  # fmt: skip
    new, nonsense = chance.choice(kind)
    if kind is OF_NUMBERS and chance.random() < 0.4:
        new, nonsense = chance.choice((value * 2, value + 1)), False
    holder[at[-1]] = copy.deepcopy(new)
    return Done(f"{name}={str(new)[:40]!r}", nonsense=nonsense and "template" not in at)


def _holder(config: dict[str, Any], at: Place) -> dict[str, Any]:
    """The mapping that a place is in; it is made where a recipe leaves it out."""
    holder: Any = config
    for key in at[:-1]:
        if isinstance(holder.get(key), str):
            holder[key] = {"name": holder[key]}
        if not isinstance(holder.get(key), dict):
            holder[key] = {}
        holder = holder[key]
    return holder


def run(file: Path, folder: Path, out: Path) -> None:
    """In a process of its own: what a person would see, and the exit status."""
    import torch

    from rolecall.cli import main

    torch.set_num_threads(1)
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    sys.argv = ["rolecall", "train", str(file), *SMALL, "--output", str(folder)]
    main.main()


def tried(config: dict[str, Any], folder: Path) -> tuple[str, str]:
    """How a run of the config ended, and the last of what it said."""
    file, out = folder / "config.yaml", folder / "out.txt"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    context = get_context("forkserver")
    context.set_forkserver_preload(["rolecall.setup.build", "rolecall.runs.train"])
    process = context.Process(target=run, args=(file, folder / "run", out))
    process.start()
    process.join(LONGEST_S)
    if process.is_alive():
        process.kill()
        process.join()
        return "hang", _tail(out)
    said = out.read_text(errors="replace") if out.exists() else ""
    if "Traceback" in said or process.exitcode not in (0, 1, 2):
        return "traceback", _tail(out)
    ends = {0: "ran", 1: "ran, and failed with a reason", 2: "refused"}
    return ends[process.exitcode], _tail(out)


def _tail(out: Path) -> str:
    lines = out.read_text(errors="replace").strip().splitlines() if out.exists() else []
    return lines[-1][:200] if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    keys = {name: keys_of(name) for name in recipe_names()}
    counts: Counter[str] = Counter()
    wrong: list[dict[str, str]] = []
    for number in range(given.mutations):
        name = list(keys)[number % len(keys)]
        config = yaml.safe_load(find(name).read_text())
        done = [mutate(config, keys[name], chance) for _ in range(chance.choice((1, 1, 2)))]
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            ended, said = tried(config, Path(folder))
        if ended.startswith("ran") and any(change.nonsense for change in done):
            ended = "nonsense accepted"
        counts[ended] += 1
        if ended in ("traceback", "hang", "nonsense accepted"):
            changes = "; ".join(change.what for change in done)
            wrong.append({"recipe": name, "changes": changes, "ended": ended, "said": said})
            print(f"! {name}: {changes}: {ended}: {said}", flush=True)
    for ended in ("refused", "ran", "ran, and failed with a reason"):
        print(f"{ended}: {counts[ended]}")
    for ended in ("traceback", "hang", "nonsense accepted"):
        print(f"{ended}: {counts[ended]}")
    if given.json:
        given.json.write_text(json.dumps({"counts": counts, "wrong": wrong}, indent=2) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
