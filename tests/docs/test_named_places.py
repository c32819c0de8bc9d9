"""The places in the code that pages name are there."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from rolecall.config.moved_keys import RENAMED
from tests.sources import source_files
from tests.structure.test_layers import drawing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/rolecall"


def text(page: str) -> str:
    return (ROOT / page).read_text()


PAGES = ["README.md", "CONTRIBUTING.md"] + [
    str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))
]
ENDING = r"\.(?:py|md|toml|yaml|sh|svg|ipynb)"
FILE = re.compile(rf"`((?:[\w.-]+/)*[\w.-]*\w{ENDING})(?:::?\w+)?`")  # also with `:name` in it
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
OBJECT = re.compile(r"`(rolecall(?:_lab)?(?:\.\w+)+(?::\w+)?)[`(]")
# A citation of a document that is not in the repository.
CITATION = re.compile(
    r"\b(?:ALGORITHMS|CONTRACTS?|DESIGN|HOUSE|PLAN|RULES|SPEC)(?:\.md)? \d[\d.]*"
    r"|\b(?:[Cc]ontract|[Rr]ule|[Rr]equirement|[Pp]rinciple) \d+|\([A-Z]\d{1,2}\)|§ ?\d*"
)
BASES = (ROOT, ROOT / "src", PACKAGE, ROOT / "src/rolecall_lab", ROOT / "tests", ROOT / "docs")
WHOLE = ("src", "tests", "docs", "examples", "benchmarks", ".ci", ".github")
# What commands write and what users write, and the group of entry points of `rolecall_lab`.
ELSEWHERE = {
    "build/", "dist/", "runs/", "runs/math/", "checkpoints/", "episodes/", "report.md",
    "stages.yaml", "rolecall.commands",
}  # fmt: skip


@cache
def file_names() -> frozenset[str]:
    files = (file for folder in WHOLE for file in (ROOT / folder).rglob("*"))
    return frozenset(file.name for file in (*files, *ROOT.iterdir()))


def is_there(name: str) -> bool:
    """Whether a file or folder exists: by its path, or a file by its name alone."""
    if "/" not in name:
        return name in file_names()
    return any((base / name).exists() for base in BASES)


def is_importable(name: str) -> bool:
    """Whether `rolecall.a.b` or `rolecall.a:b` is a module or a name in one."""
    steps = re.split("[.:]", name)
    thing = importlib.import_module(steps[0])
    for at, step in enumerate(steps[1:], 2):
        if not hasattr(thing, step):
            try:
                importlib.import_module(".".join(steps[:at]))
            except ImportError:
                return False
        thing = getattr(thing, step)
    return True


def dead_references(page: str) -> list[str]:
    """Return the files, modules and documents that a page names and that do not exist."""
    own = set(re.findall(r'title="([^"]+)"', page))  # files that the page itself writes
    files = {*FILE.findall(page), *FOLDER.findall(page)} - own - ELSEWHERE
    dead = [name for name in files if not name.startswith("path/to/") and not is_there(name)]
    dead += [name for name in {*OBJECT.findall(page)} - ELSEWHERE if not is_importable(name)]
    return sorted(dead) + CITATION.findall(page)


def comments(source: str) -> str:
    """Return the docstrings and comments of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = [token.string for token in tokens if token.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return "\n".join([*lines, *(ast.get_docstring(node) or "" for node in nodes)])


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    assert dead_references(text(page)) == []


def test_what_docstrings_and_comments_name_is_there():
    """A name without a folder may be a user's file there, and `time/` an area of metrics."""
    dead = {
        name: names
        for name, file in source_files()
        if (names := [
            one for one in dead_references(comments(file.read_text()))
            if not re.fullmatch(rf"[\w.-]+{ENDING}|\w+/", one)
        ])
    }  # fmt: skip
    assert dead == {}


@pytest.mark.parametrize(
    "wrong",
    [
        "`training/none.py`", "`none.py`", "`docs/none.md`", "`nowhere/`",
        "`rolecall.none`", "`rolecall.agents.parsers:none`", "`rolecall.none.deep()`",
        "as ALGORITHMS 2.9 has it", "by Contract 6", "by rule 24", "in order (D9)", "see §4",
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_seen(wrong):
    page = "`training/trainer.py`, `team.py`, `learners/`, `rolecall.agents.parsers:parse_boxed`"
    assert dead_references(page) == []
    assert dead_references(f"{page}\n{wrong}\n") != []
    assert dead_references(comments(f'"""One line.\n\n{wrong}\n"""\n')) != []
    assert dead_references(comments(f"x = 1  # {wrong}\n")) != []


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
