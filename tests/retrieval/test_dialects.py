"""Replies of all public servers are read; what is none is an error and never a result."""

from __future__ import annotations

import pytest

from rolecall.retrieval.base import Hit, SearchError
from rolecall.retrieval.dialects import read_reply, request_body

CONTENTS = '"Ada"\nAda wrote.'


@pytest.mark.parametrize(
    ("item", "hit"),
    [
        (
            {"document": {"id": "7", "contents": CONTENTS}, "score": 2},
            Hit("7", "Ada", "Ada wrote.", 2.0),
        ),
        ({"document": {"contents": CONTENTS}}, Hit("", "Ada", "Ada wrote.", None)),
        ({"document": CONTENTS, "score": 0.5}, Hit("", "Ada", "Ada wrote.", 0.5)),
        ({"id": "7", "contents": CONTENTS}, Hit("7", "Ada", "Ada wrote.", None)),
        (
            {"document": {"title": "T", "text": "x", "contents": CONTENTS}, "score": None},
            Hit("", "T", "x", None),
        ),
        (CONTENTS, Hit("", "Ada", "Ada wrote.", None)),
        ("one line", Hit("", "", "one line", None)),
    ],
)
def test_every_form_of_an_item_is_read(item, hit):
    assert read_reply({"result": [[item]]}, num_queries=1, topk=3) == [[hit]]


def test_items_beyond_topk_are_left_out():
    assert len(read_reply({"result": [["x"] * 7]}, num_queries=1, topk=3)[0]) == 3


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"result": [[], []]}, "2 results for 1 queries"),
        ({"result": []}, "0 results for 1 queries"),
        ({"result": [{"document": {}}]}, "without lists"),
        ({"detail": "x"}, "without lists"),
        ([[]], "without lists"),
        (None, "without lists"),
        ({"result": [[5]]}, "no document"),
        ({"result": [[{"document": None}]]}, "no document"),
        ({"result": [[{"document": {"id": "7"}}]]}, "no document"),
    ],
)
def test_a_reply_of_another_form_is_an_infrastructure_error(reply, told):
    with pytest.raises(SearchError, match=told):
        read_reply(reply, num_queries=1, topk=3)


def test_scores_are_asked_for_in_every_dialect():
    assert request_body("batch", ["a", "b"], 3) == {
        "queries": ["a", "b"], "topk": 3, "return_scores": True
    }  # fmt: skip
    assert request_body("single", ["a"], 3) == {"query": "a", "topk": 3, "return_scores": True}
    assert request_body("rerank", ["a"], 3) == {
        "queries": ["a"], "topk_retrieval": 10, "topk_rerank": 3, "return_scores": True
    }  # fmt: skip
    assert request_body("rerank", ["a"], 20)["topk_retrieval"] == 20
