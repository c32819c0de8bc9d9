"""A browser for the tests of a module, and a window that notes what no page may do."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import sync_playwright

from tests.watch.browser import skip_without_chromium


@pytest.fixture(scope="module")
def browser():
    path = skip_without_chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A window whose errors, and requests to other hosts, fail the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.extend(foreign(request.url)))
    yield page
    context.close()
    assert problems == []


def foreign(url: str) -> list[str]:
    return [] if re.match(r"(http://127\.0\.0\.1:\d+/|data:|blob:)", url) else [url]
