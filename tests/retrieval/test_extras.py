"""Optional packages are imported where they are needed, and missed with a word of advice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rolecall.config.errors import ConfigError
from rolecall.optional import optional


def test_a_missing_package_is_named_with_the_extra_that_has_it():
    with pytest.raises(ConfigError, match=r"no_such_package .*pip install 'rolecall\[dense\]'"):
        optional("no_such_package", extra="dense")


def test_no_optional_package_is_imported_before_it_is_needed():
    code = (
        "import sys, rolecall.serve.search, rolecall.environments.search.environment\n"
        "heavy = {'bm25s', 'faiss', 'sentence_transformers', 'fastapi', 'uvicorn', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
