"""Every block of a tutorial runs, in its order, and prints what the page says that it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.pages import blocks, commands, run
from tests.support import small_model
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

TUTORIALS = sorted((Path(__file__).resolve().parents[2] / "docs/tutorials").glob("*.md"))


SHORT = ["coming-over", "rewards-that-cannot-be-gamed"]


@pytest.mark.parametrize("name", leave_to_evidence([page.stem for page in TUTORIALS], keep=SHORT))
def test_the_blocks_of_a_tutorial_run_in_their_order(name, tmp_path, monkeypatch):
    [page] = [page for page in TUTORIALS if page.stem == name]
    if small_model.NAME in page.read_text():
        small_model.skip_without_small_model()
    monkeypatch.chdir(tmp_path)
    assert blocks(page.read_text()), "a tutorial has something to run"
    run(page)
    if name == "reading-a-run":
        lines = map(json.loads, Path("runs/fast/metrics.jsonl").read_text().splitlines())
        metrics = {name for line in lines if line["kind"] == "step" for name in line}
        told = [re.compile(pattern) for pattern in described_metrics(page.read_text())]
        assert [p.pattern for p in told if not any(map(p.fullmatch, metrics))] == []
        untold = {name for name in metrics if not any(p.fullmatch(name) for p in told)}
        assert untold == {"kind", "step"}


def described_metrics(text: str) -> list[str]:
    """Patterns of the names in the first column of a table of metrics."""
    names = re.findall(r"^\| `([a-zA-Z_/]+)` \| .* \| .*\|$", text, re.MULTILINE)
    return [re.sub("[A-Z]+", "[^/]+", name) for name in names]


WRONG = {
    "a command that fails": "```console\n$ rolecall train none\n```\n",
    "an error that does not come": "```console\n$ rolecall info\nrolecall: no.\n```\n",
    "a line that is not printed": "```console\n$ rolecall info\nNobody prints this.\n```\n",
    "lines in another order": "```console\n$ rolecall info\nworkflows\nversions\n```\n",
    "a script that fails": "```python\nassert 1 == 2\n```\n",
    "a language that nothing runs": "```sh\nls\n```\n",
    "a program that is not ours": "```console\n$ ls\n```\n",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_page_that_says_what_is_not_so_fails(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```console\n$ rolecall info\nversions\n...\nworkflows\n```\n")
    run(page)
    page.write_text(WRONG[wrong])
    with pytest.raises(AssertionError):
        run(page)


def test_each_command_reads_the_files_of_a_page_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        '```yaml title="team.yaml"\n'
        "team: {a: {policy: p}}\n"
        "policies: {p: {base: 'tiny:math'}}\n"
        "workflow: 'mine.py:mine'\nenvironment: math\nalgorithm: grpo\n"
        "```\n"
        '```python title="mine.py"\n```\n'
        "```console\n$ rolecall train team.yaml\n"
        "rolecall: team.yaml:3: workflow.name: mine.py has no 'mine'\n```\n"
        '```python title="mine.py"\nmine = open("none")\n```\n'
        "```console\n$ rolecall train team.yaml\n"
        "rolecall: team.yaml:3: workflow.name: 'mine.py:mine' cannot be imported\n```\n"
    )
    run(page)


def test_what_a_command_prints_stands_below_it():
    assert commands("$ a b\nc\n...\n$ d\n") == [("a b", ["c"]), ("d", [])]
