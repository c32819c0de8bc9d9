"""The watch page in a browser: every view, keys, hostile text, live runs, and a planted spike."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from rolecall.storage.episode_io import read_parquet, write_parquet
from rolecall.storage.run_folder import RunFolder
from tests.toy import relay_config, write
from tests.watch.browser import open_view, serving
from tests.watch.small_runs import append_line, make_episode, make_record, write_run

pytestmark = pytest.mark.slow

AT = "run=mine&step=3"
TURN = quote("3:add:1/0")
VIEWS = {
    "runs": "", "run": "run?run=mine", "step": f"step?{AT}", "group": f"group?{AT}&task=add",
    "talk": f"talk?{AT}&turn={TURN}", "tokens": f"talk?{AT}&turn={TURN}&panel=tokens&token=1",
    "prompt": f"talk?{AT}&turn={TURN}&panel=prompt", "notes": f"talk?{AT}&turn={TURN}&panel=coach",
    "raw": f"talk?{AT}&turn={TURN}&panel=raw", "spikes": f"spikes?{AT}",
    "find": f"find?run=mine&q={quote('agent:solver')}", "task": "task?run=mine&task=add&texts=diff",
    "compare": "compare?first=mine&second=mine", "prompts": "prompts?run=mine",
    "coach": f"coach?{AT}", "tools": f"tools?{AT}", "roles": f"roles?{AT}",
    "matrix": "matrix?run=mine", "whatif": f"whatif?{AT}&turn={TURN}", "none": "nothing?run=mine",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("watched") / "mine")


@pytest.fixture(scope="module")
def trained(model_folder, tmp_path_factory) -> Path:
    """A run that was trained, in a process without the browser's event loop."""
    folder = tmp_path_factory.mktemp("trained")
    file = write(folder / "c.yaml", relay_config(model_folder))
    words = ("train", str(file), "--output", str(folder / "run"))
    subprocess.run([sys.executable, "-m", "rolecall", *words], check=True)
    return folder / "run"


@pytest.fixture(scope="module")
def address(run):
    with serving(run.parent) as address:
        yield address


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_accessible_and_fits_wide_and_narrow_windows(page, address, view):
    for width, scheme in ((1400, "light"), (400, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        open_view(page, address, VIEWS[view])
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        found = Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
        has_error = page.locator("main .error").count() > 0
        assert has_error == (view == "none")


def test_hostile_text_is_shown_as_text(page, address):
    open_view(page, address, VIEWS["talk"])
    said = page.locator("article", has_text="onerror").first
    expect(said).to_contain_text("<img src=x onerror=alert(1)>")
    expect(said).to_contain_text("⟨U+202E⟩")
    expect(said).to_contain_text("␛[31mred")
    assert page.locator("main img").count() == 0


def test_a_conversation_is_walked_with_keys_and_back_returns(page, address):
    open_view(page, address, f"group?{AT}&task=add")
    page.get_by_role("link", name="attempt 1").click()
    page.wait_for_selector("article.turn")
    page.keyboard.press("j")
    expect(page.locator("article.selected")).to_contain_text("judge")
    page.keyboard.press("h")
    expect(page.locator("h1")).to_contain_text("attempt 0")
    page.keyboard.press("t")
    expect(page.locator("aside .tokens.text")).to_be_visible()
    token = page.locator("aside .tokens.text span").first
    expect(token).to_have_class("m5")
    page.keyboard.press("c")
    expect(page.locator('aside [aria-pressed="true"]').last).to_have_text("log-prob")
    expect(token).not_to_have_class("m5")
    page.keyboard.press("w")
    expect(page.locator("aside .formula")).to_contain_text("(0 - 0.5) / (0.5 + 1e-06) = -1")
    page.keyboard.press("e")
    expect(page.locator("h1")).to_contain_text("What if")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.go_back()
    expect(page.locator("h1")).to_contain_text("attempt 0")
    assert "episode=" in page.url


def test_nodes_of_the_graph_say_who_and_how_much(page, address):
    open_view(page, address, VIEWS["talk"])
    node = page.get_by_role("link", name="judge, turn 2, advantage +1.0", exact=True)
    node.focus()
    page.keyboard.press("Enter")
    expect(page.locator("article.selected")).to_contain_text("judge")
    assert page.locator("path.edge").count() == 1


def test_a_search_shows_what_it_found_and_of_how_many(page, address):
    open_view(page, address, "find?run=mine")
    page.get_by_role("searchbox", name="query").fill("adv>0.5 agent:judge")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("6 of 6 turns")
    page.get_by_role("button", name="add 3").click()
    expect(page.get_by_role("status").first).to_contain_text("3 of 3 turns")
    page.get_by_role("searchbox", name="query").fill("agnet:judge")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("agnet")


def test_a_running_run_is_followed(page, tmp_path):
    run = write_run(tmp_path / "mine")
    with serving(tmp_path) as address:
        open_view(page, address, VIEWS["run"])
        expect(page.locator(".facts")).to_contain_text("3 / 4")
        began = time.monotonic()
        append_line(run, make_record(4))
        expect(page.locator(".facts")).to_contain_text("4 / 4", timeout=5000)
        assert time.monotonic() - began < 2.5
        page.goto("about:blank")  # asks no more, before the server ends


def test_five_hundred_runs_are_listed_and_filtered(page, tmp_path):
    for number in range(500):
        write_run(tmp_path / f"run-{number:03}", steps=0)
    with serving(tmp_path) as address:
        open_view(page, address, VIEWS["runs"])
        expect(page.get_by_text("500 runs")).to_be_visible()
        page.get_by_role("searchbox").fill("run-49")
        expect(page.get_by_text("10 of 500")).to_be_visible()
        page.goto("about:blank")  # asks no more, before the server ends


PRESSES_C = """
() => new Promise((resolve) => {
  const began = performance.now();
  document.dispatchEvent(new KeyboardEvent("keydown", {key: "c", bubbles: true}));
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - began)));
})
"""


def test_eight_thousand_tokens_change_their_colour_at_once(page, tmp_path):
    run = RunFolder(write_run(tmp_path / "mine", steps=0))
    long = make_episode(1, "add", 1)
    turn = long.turns[0]
    turn.tokens = np.arange(8000, dtype=np.int32)
    turn.logprobs = np.linspace(-5, 0, 8000, dtype=np.float32)
    turn.versions = np.zeros(8000, np.int32)
    turn.advantages = np.linspace(-1, 1, 8000, dtype=np.float32)
    write_parquet(run.episode_file(1), [long], step=1)
    with serving(tmp_path) as address:
        open_view(page, address, f"talk?run=mine&step=1&turn={quote(turn.id)}&panel=tokens")
        expect(page.locator("aside .tokens.text span")).to_have_count(8000)
        took = [page.evaluate(PRESSES_C) for _ in range(5)]
        expect(page.locator("aside .legend").first).to_contain_text("version 0")
        assert sorted(took)[2] < 200, took


SPOILT = """
async def bonus(episode, world):
    if episode.id.startswith("4:") and episode.attempt == 2 and not PAID:
        PAID.append(episode.id)
        return {"team": 500.0}
    return {"team": 0.0}


PAID = []
"""


def test_a_planted_spike_is_found_by_following_the_page(page, model_folder, tmp_path):
    """One reward of step 4 is spoilt; the way leads from the run to its turn."""
    (tmp_path / "spoilt.py").write_text(SPOILT)
    config = relay_config(model_folder, trainer={"steps": 5})
    config["algorithm"] = "dr_grpo"
    config["rewards"] = {"correct": 1.0, f"{tmp_path}/spoilt.py:bonus": 1.0}
    folder = tmp_path / "runs"
    file = write(tmp_path / "c.yaml", config)
    words = ("train", str(file), "--output", str(folder / "mine"))
    subprocess.run([sys.executable, "-m", "rolecall", *words], check=True)
    with serving(folder) as address:
        open_view(page, address, VIEWS["run"])
        chart = page.locator("figure", has=page.get_by_role("heading", name="policy: grad_norm"))
        chart.scroll_into_view_if_needed()
        chart.locator("summary").click()
        expect(chart.locator("tbody tr")).to_have_count(5)
        norms = {
            row.locator("td").nth(0).inner_text(): row.locator("td").nth(1).inner_text()
            for row in chart.locator("tbody tr").all()
            if row.locator("td").count() > 1
        }
        largest = max(norms, key=lambda step: float(norms[step].replace(",", "")))
        assert largest == "4"
        chart.get_by_role("button", name="4", exact=True).click()
        expect(page.locator("h1")).to_have_text("Step 4")
        page.get_by_role("link", name="where its gradient came from").click()
        page.wait_for_selector("text=Optimizer steps")
        table = page.get_by_role("region", name="Tokens (table)")
        turn = table.locator("tbody tr").nth(0).locator("td").last.inner_text()
        table.locator("tbody a.row-link").first.click()
        page.wait_for_selector("article.turn")
        expect(page.locator("h1")).to_contain_text("attempt 2")
        assert turn.startswith("4:")
        expect(page.locator(".facts").first).to_contain_text("500")
        page.keyboard.press("w")
        expect(page.locator("aside .term").first).to_contain_text("500")


def test_a_turn_is_changed_on_the_page_and_the_one_that_decided_is_named(page, trained):
    with serving(trained.parent, "--what-if") as address:
        step = f"run={trained.name}&step=2"
        turn = read_parquet(RunFolder(trained).episode_file(2))[0].turns[0].id
        open_view(page, address, f"talk?{step}&turn={quote(turn)}")
        page.keyboard.press("e")
        page.get_by_role("textbox", name="it says instead").fill("something else")
        page.get_by_role("button", name="replay").click()
        page.get_by_role("button", name="stop").click()
        expect(page.get_by_text("cancelled")).to_be_visible()
        page.get_by_role("spinbutton", name="draws").fill("2")
        page.get_by_role("button", name="replay").click()
        expect(page.locator(".result h2")).to_contain_text("±", timeout=60_000)
        expect(page.locator(".result")).to_contain_text("4 replays, of which 0 failed")
        page.get_by_role("button", name="which turn decided?").click()
        expect(page.locator(".result")).to_have_count(0)
        page.get_by_role("button", name="replay").click()
        expect(page.locator(".result th").first).to_have_text("turn", timeout=60_000)
        open_view(page, address, f"spikes?{step}")
        page.get_by_role("button", name="measure the largest 20").click()
        table = page.get_by_role("region", name="Tokens (table)")
        expect(table.get_by_text("measured", exact=True)).to_be_visible(timeout=60_000)
