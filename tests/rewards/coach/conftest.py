"""The key that every coach of these tests is given."""

import pytest


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("COACH_KEY", "secret-key-1")
