"""Commands that are ended at random moments and started again lose nothing and do nothing twice.

ROLECALL_KILLS=60 makes it a long one; ROLECALL_KILLS_SEED chooses other moments. As a program, with
a table of what came out: `python benchmarks/chaos_commands.py`.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "chaos_commands.py"
SPEC = importlib.util.spec_from_file_location("chaos_commands", FILE)
chaos = sys.modules["chaos_commands"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(chaos)
NAMES = list(chaos.Kinds(Path()).names)
KILLS = int(os.environ.get("ROLECALL_KILLS", str(len(NAMES))))
SEED = int(os.environ.get("ROLECALL_KILLS_SEED", "1"))
WHOLE_S = 6.0  # about what each command takes


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return chaos.Kinds(tmp_path_factory.mktemp("chaos"))


@pytest.mark.slow
@pytest.mark.evidence
@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_is_killed_comes_to_what_it_would_have_come_to(name, kinds, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FILE.parents[1] / "src")]))
    number = NAMES.index(name)
    kills = KILLS * (number + 1) // len(NAMES) - KILLS * number // len(NAMES)
    chance = random.Random(f"{SEED} {name}")
    found = chaos.tried(kinds, name, kills=kills, chance=chance, whole_s=WHOLE_S)
    assert sum(found.kills.values()) == kills
    assert found.is_clean, found


def test_the_counts_see_what_is_lost_and_what_is_there_twice(tmp_path):
    found = chaos.Found()
    chaos.count(chaos.Counter("aab"), 4, found)
    assert (found.lost, found.doubled) == (2, 1)
    (tmp_path / "data/set").mkdir(parents=True)
    (tmp_path / "data/set/train.jsonl").write_text('{"question": "1?", "answer": "1"}\n')
    chaos.look_at_data(tmp_path, found)
    assert found.lost > 2
    assert not found.is_clean
