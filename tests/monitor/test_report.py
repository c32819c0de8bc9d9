"""The page shows a run, and nothing that a model wrote can become markup."""

import re
from html.parser import HTMLParser

import pytest

from rolecall.monitor import report
from tests.monitor.runs_for_tests import episode, evaluation_record, make_run, step_record

pytestmark = pytest.mark.slow

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'</div>{{ 7*7 }}</style>"


class Elements(HTMLParser):
    """What a browser would find."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.open = set(), [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "img", "source", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run with two evaluations, three steps and two tasks."""
    folder = make_run(
        tmp_path_factory.mktemp("runs") / "my-run",
        records=[
            evaluation_record(0, "before", 0.125),
            *(step_record(step) for step in (1, 2, 3)),
            evaluation_record(3, "after", 0.625),
        ],
        episodes=[
            episode("2+2", 0, score=1.0, advantage=0.75, text="It is four."),
            episode("2+2", 1, score=0.0, advantage=-0.75, text="It is five."),
        ],
        evaluated=[episode("3+1", 0, score=1.0), episode("3+1", 1, text="It is nine.")],
    )
    return report.write(folder).read_text()


def test_the_page_holds_numbers_curves_and_conversations(page):
    for text in ("my-run", "drmas", "0.125", "0.625", "+0.5", "What is 2+2?", "It is five."):
        assert text in page
    assert "advantage +0.75" in page
    assert "LoRA" not in page  # the verifier's adapter is not trained
    assert page.count("data:image/png;base64,") == 4
    assert page.count("All 2 attempts") == 2


def test_model_text_is_escaped_wherever_it_stands(tmp_path):
    bad = episode("2+2", 0, text=ATTACK, source=ATTACK, error=None)
    bad.task.info["source"] = ATTACK
    bad.turns[0].agent = bad.turns[0].policy = ATTACK
    bad.turns[0].messages[0].content = bad.turns[0].messages[0].role = ATTACK
    bad.turns[0].rewards[ATTACK] = bad.rewards[ATTACK] = 1.0
    other = episode(ATTACK, 0, text=f"{ATTACK}</think>{ATTACK}", source=ATTACK)
    folder = make_run(tmp_path / "run", episodes=[bad, other, episode("2+2", 1, source=ATTACK)])
    page = report.write(folder).read_text()
    found = Elements(page)
    assert not found.open
    assert not found.names & {"script", "iframe", "object", "link", "form", "base"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "{{ 7*7 }}" in page


def test_the_page_needs_nothing_from_elsewhere(page):
    places = [
        value for name, value in Elements(page).attributes if name in ("src", "srcset", "href")
    ]
    assert places
    assert all(place.startswith("data:image/png;base64,") for place in places)
    assert not re.search(r"url\(|@import", page)
    assert "default-src 'none'" in page


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    page = report.write(make_run(tmp_path / "run")).read_text()
    assert "not been evaluated yet" in page
    assert "No episode has been written yet" in page
    assert not Elements(page).open


def test_one_evaluation_is_shown_without_an_after(tmp_path):
    folder = make_run(tmp_path / "run", records=[evaluation_record(0, "before", 0.125)])
    page = report.write(folder).read_text()
    assert "0.125" in page
    assert "evaluated once so far (before)" in page


def test_flags_of_a_turn_are_named(tmp_path):
    played = episode("2+2", 0)
    played.turns[0].valid = played.turns[1].trained = False
    played.turns[1].finish = "length"
    page = report.write(make_run(tmp_path / "run", episodes=[played])).read_text()
    for flag in ("unreadable", "cut off", "frozen"):
        assert f">{flag}</span>" in page
    assert ">not played</span>" not in page


def test_long_text_loses_its_middle():
    assert report.shorten("abcdefgh", longest=4) == "ab\n[... 4 letters left out ...]\ngh"
    assert report.shorten("abcd", longest=4) == "abcd"


def test_small_numbers_have_no_sign():
    assert [report.format_signed(x) for x in (0.58386, -0.1, -1e-9, 0.0)] == [
        "+0.584",
        "-0.1",
        "0",
        "0",
    ]
