"""Optional packages are imported where they are needed, and missed with a word of advice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rolecall.core.errors import ConfigError
from rolecall.core.optional import needs, optional

pytestmark = pytest.mark.slow

# Hides packages from a process, as if they were not installed.
HIDE = """if True:
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {hidden!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Hidden())
    sys.argv = {arguments!r}
"""


def without(hidden, code, *arguments):
    """What Python, without the hidden packages, did with the code."""
    start = HIDE.format(hidden=set(hidden), arguments=["rolecall", *arguments])
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True)


def test_a_missing_package_is_named_with_the_extra_that_has_it():
    with pytest.raises(ConfigError, match=r"no_such_package .*pip install 'rolecall\[dense\]'"):
        optional("no_such_package", extra="dense")
    with pytest.raises(ConfigError, match=r"^trackers: no_such_package is not installed"):
        optional("no_such_package", extra="dense", key="trackers")
    with (
        pytest.raises(ConfigError, match=r"thing is not installed: .*\[gym\].*no_such_package"),
        needs("thing", extra="gym"),
    ):
        import no_such_package  # noqa: F401


def test_no_optional_package_is_imported_before_it_is_needed():
    code = (
        "import sys, rolecall.cli.serving_commands, rolecall.environments.search.environment\n"
        "heavy = {'bm25s', 'faiss', 'sentence_transformers', 'fastapi', 'uvicorn', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("command", "hidden", "missed"),
    [
        (["serve", "sandbox"], ["fastapi", "uvicorn"], "fastapi"),
        (["serve", "sandbox"], ["uvicorn"], "uvicorn"),
        (["serve", "search", "--corpus", "c.jsonl"], ["fastapi", "uvicorn"], "fastapi"),
        (["serve", "search", "--corpus", "c.jsonl"], ["uvicorn"], "uvicorn"),
    ],
)
def test_a_server_without_its_extra_ends_with_one_line(command, hidden, missed):
    ended = without(hidden, "    from rolecall.cli.main import main\n    main()\n", *command)
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"rolecall: {missed} is not installed: pip install 'rolecall[serve]'")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("rolecall.environments.gymnasium.export", "gymnasium", "gym"),
        ("rolecall.environments.pettingzoo.export", "pettingzoo", "gym"),
        ("rolecall.engines.served.anthropic", "anthropic", "coach"),
        ("rolecall.engines.served.google", "google", "coach"),
        ("rolecall.serve.sandbox", "fastapi", "serve"),
        ("rolecall.serve.search", "fastapi", "serve"),
    ],
)
def test_a_file_that_needs_an_extra_says_so_when_it_is_imported(module, package, extra):
    code = (
        "    from rolecall.config.errors import ConfigError\n"
        f"    try:\n        import {module}\n"
        "    except ConfigError as error:\n        print(error)\n"
    )
    ended = without([package], code)
    assert ended.returncode == 0, ended.stderr
    assert f"is not installed: pip install 'rolecall[{extra}]'" in ended.stdout


@pytest.mark.parametrize(
    ("code", "package", "extra"),
    [
        ("from rolecall.tools.mcp import Mcp; Mcp(url='http://h')", "mcp", "mcp"),
        ("from rolecall.sandbox.fusion import Fusion; Fusion('http://h')", "httpx", "serve"),
        ("from rolecall.retrieval.remote import Servers; Servers(['http://h'])", "httpx", "search"),
        ("from rolecall.grading.tabular import METRICS; METRICS['mae'].compute([1.0], [1.0])",
         "sklearn", "data"),
        ("from rolecall.config.served import OpenAIEngineConfig as Section\n"
         "    from rolecall.engines.served.openai import OpenAIEngine\n"
         "    OpenAIEngine(Section(url='http://h', model='m'), policies=[], key=None)",
         "httpx", "served"),
        ("from rolecall.config.cluster import RayClusterConfig\n"
         "    from rolecall.cluster.session import RaySession\n"
         "    RaySession(RayClusterConfig(name='ray'))", "ray", "ray"),
    ],
)  # fmt: skip
def test_what_needs_an_extra_says_so_when_it_is_made(code, package, extra):
    ended = without([package], f"    {code}\n")
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("rolecall.core.errors.ConfigError: ")
    assert f"is not installed: pip install 'rolecall[{extra}]'" in last
