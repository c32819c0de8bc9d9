"""The places in the code that pages name are there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from rolecall.config.moved_keys import RENAMED
from tests.structure.test_layers import drawing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/rolecall"


def text(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"])
def test_files_and_folders_that_a_page_names_are_there(page):
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md|toml|yaml)|/))`", text(page))
    assert named
    made = {"build/", "dist/"}
    named = [name for name in named if name not in made and not name.startswith("path/to")]
    inside = (ROOT, PACKAGE, PACKAGE / "training", ROOT / "src/rolecall_lab")
    assert [name for name in named if not any((base / name).exists() for base in inside)] == []


def test_the_architecture_has_a_sentence_for_each_folder():
    table = text("docs/architecture.md").partition("## Folders")[2].partition("\n## ")[0]
    table = table.partition("src/rolecall_lab")[0]
    described = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    assert described == {drawing.room_of(module) for module in drawing.modules()}


def test_the_glossary_has_at_most_25_words_in_their_order():
    words = re.findall(r"^\| \*\*(.*?)\*\* \|", text("docs/glossary.md"), re.MULTILINE)
    assert len(words) <= 25
    assert words == sorted(words, key=str.lower)


def test_the_changelog_has_every_renamed_key_and_where_modules_went():
    log = text("CHANGELOG.md")
    rows = dict(re.findall(r"^\| `([\w.*]+)` \| `([\w.*]+)` \|$", log, re.MULTILINE))
    keys = {old: new for old, new in rows.items() if not old.startswith("rolecall.")}
    assert keys == RENAMED
    moved = [new for old, new in rows.items() if old.startswith("rolecall.")]
    assert len(moved) > 50
    assert [name for name in moved if find_spec(name) is None] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_beside_the_site_lead_somewhere(page):
    found = re.findall(r"\]\(([^)#]+)[^)]*\)", text(page))
    assert [link for link in found if "://" not in link and not (ROOT / link).exists()] == []


def test_commands_of_make_that_pages_name_are_in_the_makefile():
    targets = make_targets()
    for page in ("README.md", "CONTRIBUTING.md", ".ci/run", "docs/learning.md"):
        named = set(re.findall(r"(?:^|`)(?:\w+=\w+ )*make ([\w-]+)", text(page), re.MULTILINE))
        assert named, page
        assert named <= targets, page


def test_the_workflow_runs_commands_of_the_makefile():
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    made = [line.removeprefix("make ") for line in commands if line.startswith("make ")]
    assert set(made) == {
        "lint", "real-tokenizers", "test", "test-without-system-packages", "test-alone", "evidence",
        "docs", "wheel",
    }  # fmt: skip
    assert set(made) <= make_targets()
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12"]


def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
