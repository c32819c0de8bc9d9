"""The page of algorithms is what the code says, and the tests and proofs that it names exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from rolecall.config import registry
from rolecall_lab.proofs.all import PROOFS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/generate_algorithms.py"
spec = importlib.util.spec_from_file_location("generate_algorithms", FILE)
generating = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generating)
NAMES = list(registry.BUILT_IN["algorithm"])


def kind_of(name):
    return registry.resolve("algorithm", name, key="algorithm")


def cells_of(name) -> list[str]:
    """The columns of its row in the table of needs."""
    page = FILE.with_name("algorithms.md").read_text()
    (row,) = re.findall(rf"^\| \[`{name}`\]\(#{name}\) \| (.*) \|$", page, re.MULTILINE)
    return row.split(" | ")


def test_the_page_is_of_this_code():
    page = FILE.with_name("algorithms.md").read_text()
    assert page == generating.page(), "run docs/generate_algorithms.py"


@pytest.mark.parametrize(("there", "gone"), [(True, False), (False, True)])
def test_an_algorithm_without_a_text_and_a_text_without_one_are_errors(monkeypatch, there, gone):
    text = generating.TEXTS["grpo"]
    if gone:
        monkeypatch.delitem(generating.TEXTS, "grpo")
    else:
        monkeypatch.setitem(generating.TEXTS, "grpo2", text)
    with pytest.raises(ValueError, match="the built-in algorithms differ in 'grpo"):
        generating.page()


@pytest.mark.parametrize("name", NAMES)
def test_tests_and_proofs_that_a_text_names_exist(name):
    said = generating.TEXTS[name]
    assert said.tests
    for place in said.tests:
        file, function = place.split("::")
        assert f"\ndef {function}(" in (ROOT / "tests" / file).read_text(), place
    assert set(said.proofs) <= PROOFS.keys()
    assert all(re.fullmatch(r"\d{4}\.\d{5}", paper) for paper in said.papers)
    assert all(paper in generating._first_sentence(kind_of(name)) for paper in said.papers[:1])


def test_every_proof_stands_with_an_algorithm():
    page = FILE.with_name("algorithms.md").read_text()
    assert [name for name in PROOFS if f"`rolecall prove {name}`" not in page] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_table_says_of_references_what_the_algorithm_asks_for(name):
    kind, needed = kind_of(name), cells_of(name)[2]
    assert kind().needs_reference == needed.startswith("yes")
    if "kl" in needed:
        assert not kind(kl=0.0).needs_reference
        assert kind(kl=0.1).needs_reference
    else:
        with pytest.raises(ValueError, match="kl"):
            kind(kl=0.0)
