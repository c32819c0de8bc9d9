"""A server of the watch page in a process of its own, and Debian's Chromium that looks at it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect


def skip_without_chromium() -> str:
    """Return the path of Chromium; skip the test where it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed; .ci/system-packages installs it on Debian")
    return path


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[str]:
    """Serve the runs below a folder; the address of the page."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "rolecall", "watch", str(folder), "--no-open"]
    server = subprocess.Popen([*command, "--port", str(port), *words], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            assert server.poll() is None, "the server has ended"
            try:
                urllib.request.urlopen(f"{address}/api/session").close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


def open_view(page: Page, address: str, view: str) -> None:
    """Open an address of the page such as `step?run=mine`, and wait until it shows its answer."""
    page.goto(f"{address}/{view}")
    page.wait_for_selector("main h1, main .error")
    expect(page.locator("main .waiting")).to_have_count(0)
