"""What the watch page keeps in its address, and the ways through it that need no mouse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.watch.browser import open_view, serving, skip_without_chromium
from tests.watch.small_runs import write_run

pytestmark = pytest.mark.slow

AT = "run=mine&step=3"


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    skip_without_chromium()
    folder = tmp_path_factory.mktemp("watched")
    for name in ("mine", "other"):
        write_run(folder / name)
    with serving(folder) as address:
        yield address


def test_back_brings_back_what_was_filtered_and_sorted(page, address):
    open_view(page, address, f"step?{AT}")
    page.get_by_label("filter groups").fill("add")
    page.get_by_role("button", name="mean score").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("mean score")
    before = page.url
    page.locator("a.row-link").first.click()
    page.wait_for_url("**/group?**")
    page.go_back()
    page.wait_for_url(before)
    expect(page.get_by_label("filter groups")).to_have_value("add")
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("mean score")
    expect(page.locator("main").get_by_role("status").first).to_contain_text("1 of 2 groups")


def test_an_address_alone_opens_the_same_view(page, address):
    """Nothing that is chosen is kept anywhere else, so a copied link shows it to others."""
    open_view(page, address, f"talk?{AT}&turn={quote('3:add:1/1.0')}")
    page.keyboard.press("t")
    page.wait_for_selector("[data-token]")
    page.keyboard.press("c")
    expect(page.locator('aside [aria-pressed="true"]').last).to_have_text("log-prob")
    link, shown = page.url, page.locator("aside").inner_text()
    open_view(page, address, "")
    page.goto(link)
    page.wait_for_selector("[data-token]")
    assert page.locator("aside").inner_text() == shown


def test_steps_are_walked_with_brackets(page, address):
    open_view(page, address, f"step?{AT}")
    page.keyboard.press("[")
    expect(page.locator("h1")).to_have_text("Step 2")
    page.keyboard.press("]")
    expect(page.locator("h1")).to_have_text("Step 3")
    page.keyboard.press("]")
    expect(page.locator("h1")).to_have_text("Step 3")


def test_the_help_lists_the_keys_that_the_page_has(page, address):
    open_view(page, address, f"talk?{AT}&turn={quote('3:add:1/0')}")
    page.keyboard.press("?")
    keys = page.locator("dialog kbd").all_inner_texts()
    assert {"j", "k", "h", "l", "t", "w", "e", "y", "/", "?"} <= set(keys)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    open_view(page, address, "")
    page.keyboard.press("?")
    assert "j" not in page.locator("dialog kbd").all_inner_texts()
    page.keyboard.press("Escape")


def test_a_point_of_a_curve_is_chosen_and_opened_by_keyboard(page, address):
    open_view(page, address, "run?run=mine")
    page.get_by_role("group", name="score by step").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".values").first).to_contain_text("step 2")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Step 2")


def test_curves_have_a_table_behind_them(page, address):
    open_view(page, address, "run?run=mine")
    page.get_by_text("Table of score", exact=True).click()
    rows = page.get_by_role("table", name="Table of score").locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("0.750")


def test_rows_of_a_table_are_walked_with_arrows(page, address):
    open_view(page, address, f"step?{AT}")
    page.locator(".table").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/group?**")
    expect(page.locator("h1")).to_have_text("sub")


def test_two_ticked_runs_are_compared(page, address):
    open_view(page, address, "")
    for name in ("mine", "other"):
        page.get_by_label(f"compare {name}", exact=True).check()
    page.get_by_role("link", name="Compare").click()
    page.wait_for_url("**/compare?first=mine&second=other")
    expect(page.locator("h1")).to_contain_text("mine and other")


def test_hostile_text_is_text_on_the_board_and_in_what_is_found(page, address):
    for view in (f"group?{AT}&task=add&texts=all", f"find?run=mine&q={quote('onerror')}"):
        open_view(page, address, view)
        expect(page.locator("main table").first).to_contain_text("<img src=x onerror=alert(1)>")
        assert page.locator("main img, main script").count() == 0


def test_each_matrix_of_a_cross_play_can_be_chosen(page, tmp_path):
    run = write_run(tmp_path / "mine", steps=1)
    tables = [
        {"agent": agent, "others": [other], "of": "team", "runs": ["A"], "mean": [[mean]]}
        for agent, other, mean in (("solver", "judge", 0.25), ("judge", "solver", 0.75))
    ]
    (run / "evaluated").mkdir()
    (run / "evaluated" / "crossplay.json").write_text(json.dumps({"matrices": tables}))
    with serving(tmp_path) as address:
        open_view(page, address, "matrix?run=mine")
        expect(page.locator("table.matrix td.number")).to_contain_text("0.250")
        page.get_by_role("button", name="judge with solver").click()
        expect(page.locator("table.matrix td.number")).to_contain_text("0.750")
        page.go_back()
        expect(page.locator("table.matrix td.number")).to_contain_text("0.250")
