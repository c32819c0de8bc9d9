"""Takes a picture of each page of `rolecall watch`, at 1400 and at 400 pixels: needs Chromium.

python docs/take_screenshots.py RUNS [--output docs/watch]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

PORT = 8893
WIDTHS = {1400: 1000, 400: 860}  # of a window -> its height


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="a folder of runs; the first with updates is shown")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("watch"))
    parser.add_argument("--only", default="", help="name of one page")
    options = parser.parse_args()
    command = [sys.executable, "-m", "rolecall", "watch", str(options.runs), "--no-open"]
    server = subprocess.Popen([*command, "--port", str(PORT)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        while b"http://" not in server.stdout.readline():
            assert server.poll() is None, "the server has ended"
        wait_for_server()
        options.output.mkdir(exist_ok=True)
        take_all(options.output, options.only)
    finally:
        server.terminate()


def wait_for_server() -> None:
    for _ in range(100):
        try:
            ask("session")
            return
        except OSError:
            time.sleep(0.1)


def ask(address: str) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/{address}") as answer:
        return json.load(answer)


def list_pages() -> dict[str, str]:
    """Return the addresses of all pages, with things that are worth a look."""
    runs = [row["run"] for row in ask("runs")["runs"]]
    run = next(name for name in runs if not ask(f"spikes?run={quote(name)}")["missing"])
    step = ask(f"step?run={quote(run)}")
    group = max(step["groups"], key=lambda row: (row["sign"] == "signal", len(set(row["scores"]))))
    at = f"run={quote(run)}&step={step['step']}"
    task = f"task={quote(group['task'])}&source={quote(group['source'])}"
    board = ask(f"group?{at}&{task}")
    talk = max(
        (ask(f"talk?{at}&episode={quote(column['episode'])}") for column in board["columns"]),
        key=lambda one: len(one["turns"]),
    )
    turn = f"turn={quote(talk['turns'][0]['turn'])}"
    episode = f"episode={quote(talk['episode'])}"
    other = next((name for name in runs if name != run), run)
    kinds = {name: ask(f"run?run={quote(name)}")["kinds"] for name in runs}
    own = {
        kind: f"{kind}?run={quote(name)}"
        for kind in ("tools", "coach", "matrix")
        for name in runs
        if kind in kinds[name]
    }
    return {
        "runs": "",
        "run": f"run?run={quote(run)}",
        "step": f"step?{at}",
        "group": f"group?{at}&{task}",
        "talk": f"talk?{at}&{episode}&{turn}",
        "tokens": f"talk?{at}&{episode}&{turn}&panel=tokens&token=2",
        "spikes": f"spikes?{at}",
        "find": f"find?run={quote(run)}&q={quote('adv>1')}",
        "task": f"task?run={quote(run)}&{task}",
        "prompts": f"prompts?run={quote(run)}",
        "compare": f"compare?first={quote(run)}&second={quote(other)}",
        "roles": f"roles?{at}",
        "whatif": f"whatif?{at}&{turn}",
        **own,
    }


def take_all(folder: Path, only: str) -> None:
    pages = {name: page for name, page in list_pages().items() if only in ("", name)}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for width, height in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            for name, address in pages.items():
                page.goto(f"http://127.0.0.1:{PORT}/{address}")
                page.wait_for_selector("h1, .error")
                page.wait_for_timeout(600)  # curves are drawn when they come into sight
                wide = page.evaluate("document.scrollingElement.scrollWidth")
                if wide > width:
                    print(f"{name} at {width} pixels is {wide} pixels wide")
                file = folder / f"{name}-{width}.png"
                page.screenshot(path=file)
                Image.open(file).quantize(64).save(file, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
