"""Names and patterns that programs and clients choose do not outlast or hold up a run."""

from __future__ import annotations

import os
import time
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import pytest

from rolecall.sandbox.base import can_be_placed
from rolecall.sandbox.inside import init

pytestmark = pytest.mark.slow


def by_definition(parts: list[str], pattern: list[str]) -> bool:
    """Slow: each ** tries all lengths."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(by_definition(parts[n:], pattern[1:]) for n in range(len(parts) + 1))
    return (
        bool(parts) and fnmatchcase(parts[0], pattern[0]) and by_definition(parts[1:], pattern[1:])
    )


def test_patterns_match_what_their_definition_says():
    for length, size in product(range(5), range(5)):
        for parts in product("ab", repeat=length):
            for pattern in product(("**", "a", "*", "b*"), repeat=size):
                assert init.matches([*parts], [*pattern]) == by_definition([*parts], [*pattern])


def test_a_pattern_of_many_stars_takes_no_time():
    began = time.process_time()
    for _ in range(100):
        assert not init.matches(["a"] * 40, ["**"] * 14 + ["b"])
        assert not init.matches(["a"] * 40, ["**", "a"] * 14 + ["b"])
    assert time.process_time() - began < 2.0


def test_own_folders_and_names_that_are_no_text_are_not_collected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (b"kept", b"__program__x/a", b"in/__program__y/a", b"\xff\xfe", b"in/\xff"):
        place = os.path.join(os.fsencode(tmp_path), path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(os.fsdecode(place)).write_text("x")
    found = sorted(init.regular_files())
    assert [path for path in found if init.is_text(path)] == ["kept"]
    assert sum(not init.is_text(path) for path in found) == 2


@pytest.mark.parametrize(
    ("path", "can"),
    [("a.txt", True), ("in/\u00e9", True), ("__program__x/a", False), ("__program__.py", False),
     ("in/__program__", True), ("\udcff", False), ("../a", False), ("/a", False), ("", False)],
)  # fmt: skip
def test_only_files_that_the_next_run_takes_are_kept(path, can):
    assert can_be_placed(path) is can
