"""The site is built as `make docs` builds it, and says all that the code says."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def text_of(page: Path) -> str:
    """What a reader sees of a page's article, without its markup."""
    article = page.read_text().partition("<article")[2].partition("</article>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", article)).split())


def test_every_page_is_built_and_no_script_is_among_them(site):
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    for page in pages - {Path("index.md")}:
        assert (site / page.with_suffix("") / "index.html").is_file(), page
    assert not list(site.rglob("*.py"))


@pytest.mark.parametrize(
    "wrong", ["[there](none.md)", "[there](#none)", "[there](other.md#none)", "[there](/none.md)"]
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, wrong):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "other.md").write_text("# Other\n")
    (docs / "index.md").write_text("# Here\n\n[there](other.md#other)\n")

    def built() -> None:
        pages = [{"Here": "index.md"}, {"Other": "other.md"}]
        changed = {"docs_dir": str(docs), "site_dir": str(tmp_path / "site"), "nav": pages}
        build(load_config(str(ROOT / "mkdocs.yml"), plugins=["search"], **changed))

    built()
    (docs / "index.md").write_text(f"# Here\n\n{wrong}\n")
    with pytest.raises(Abort):
        built()


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("api/data", "log-prob of each sampled token under the sampler"),  # beside a field
        ("api/data", "special tokens; <think> before what began inside it"),  # looks like markup
        ("api/team", "Ask the agent. Raises ValueError"),  # a method with a private name
        ("api/config", "Most tokens, prompts included, in one forward"),
        ("config", "runs/<name of the recipe or file>"),
        ("teams", "<use_mcp_tool> with <arguments>"),
    ],
)
def test_a_page_shows_what_the_code_says(site, page, told):
    assert told in text_of(site / page / "index.html")
