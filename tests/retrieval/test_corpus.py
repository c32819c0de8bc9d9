"""Rows of public corpora become passages; bad ones are named by file and line."""

from __future__ import annotations

import gzip
import json

import pytest

from rolecall.retrieval.base import Passage
from rolecall.retrieval.corpus import (
    fingerprint,
    join_contents,
    read_corpus,
    read_passage,
    split_contents,
)
from rolecall.retrieval.passages import PassageFile, store_passages


@pytest.mark.parametrize(
    ("row", "passage"),
    [
        ({"id": "7", "contents": '"Ada"\nAda wrote.'}, Passage("7", "Ada", "Ada wrote.")),
        ({"id": 0, "contents": "Ada\none\ntwo"}, Passage("0", "Ada", "one\ntwo")),
        ({"id": "a", "contents": "no title"}, Passage("a", "", "no title")),
        ({"contents": '"""Al"" (song)"\ntext'}, Passage("", '""Al"" (song)', "text")),
        (
            {"id": "1", "title": "T", "text": "x", "contents": '"other"\ny'},
            Passage("1", "T", "x"),
        ),
        ({"id": "1", "title": "T", "contents": "one\ntwo"}, Passage("1", "T", "one\ntwo")),
        ({"id": "1", "title": "T", "contents": '"T"\ntwo'}, Passage("1", "T", "two")),
        ({"id": "1", "title": "T", "contents": "T\ntwo"}, Passage("1", "T", "two")),
        ({"id": "1", "title": '"T"', "contents": '"T"\ntwo'}, Passage("1", '"T"', "two")),
        ({"id": "1", "title": "", "contents": '"T"\ntwo'}, Passage("1", "T", "two")),
        ({"id": "1", "title": None, "contents": "one"}, Passage("1", "", "one")),
        ({"id": "1", "text": "x"}, Passage("1", "", "x")),
        ({"contents": ""}, Passage("", "", "")),
    ],
)
def test_a_row_of_each_form_becomes_a_passage(row, passage):
    assert read_passage(row) == passage


def test_contents_are_taken_apart_as_they_were_put_together():
    for passage in (Passage("1", "T", "one\ntwo"), Passage("1", "", "x"), Passage("1", '"', "")):
        assert split_contents(join_contents(passage), name="1") == passage


def test_a_corpus_is_read_in_its_order_also_gzipped(tmp_path):
    rows = [{"id": str(n), "contents": f'"t{n}"\ntext {n}'} for n in range(3)]
    text = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "c.jsonl").write_text(text)
    (tmp_path / "c.gz").write_bytes(gzip.compress(text.encode()))
    read = list(read_corpus(tmp_path / "c.jsonl"))
    assert read == list(read_corpus(tmp_path / "c.gz"))
    assert read == [Passage(str(n), f"t{n}", f"text {n}") for n in range(3)]


def test_a_corpus_is_read_lazily(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "text": "x"}\nnot json')
    passages = read_corpus(path)
    assert next(passages) == Passage("1", "", "x")
    with pytest.raises(ValueError, match=r"c\.jsonl:2: not JSON"):
        next(passages)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"id": "2"}, "no `contents` and no `text`; columns: id"),
        ({"id": "2", "contents": 5}, "no `contents`"),
        ({"contents": "x"}, "no `id`"),
        ({"id": None, "contents": "x"}, "no `id`"),
    ],
)
def test_a_row_that_is_no_passage_is_named_by_file_and_line(tmp_path, row, told):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "contents": "x"}\n' + json.dumps(row))
    with pytest.raises(ValueError, match=told) as caught:
        list(read_corpus(path))
    assert str(caught.value).startswith(f"{path}:2: ")


def test_the_public_corpus_sample_is_read(shared):
    path = shared / "data/search_r1_corpus.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    passages = list(read_corpus(path))
    assert [passage.id for passage in passages] == [str(n) for n in range(10)]
    assert [p.title for p in passages[:3]] == ["Evan Morris", "Horatio Hale", "Dibba Al-Hisn"]
    assert all(p.text and '"' not in p.title and "\n" not in p.title for p in passages)


def test_a_fingerprint_changes_with_size_and_either_end(tmp_path):
    marks = set()
    for content in (b"ab", b"abc", b"xbc", b"xby", b"a" * (3 << 20), b"a" * (3 << 20) + b"b"):
        (tmp_path / "c").write_bytes(content)
        marks.add(fingerprint(tmp_path / "c"))
    assert len(marks) == 6
    assert fingerprint(tmp_path / "c") in marks
    with pytest.raises(ValueError, match="no corpus file"):
        fingerprint(tmp_path / "nothing")


def test_any_stored_passage_is_read_back_by_its_number(tmp_path):
    passages = [
        Passage("1", "Zo\u00eb\n", "a\tb \u2028"),
        Passage("2", "", ""),
        Passage("3", "t", "\ud800"),
    ]
    assert list(store_passages(passages, tmp_path)) == passages
    opened = PassageFile(tmp_path)
    assert len(opened) == 3
    assert [opened[n] for n in (2, 0, 1)] == [passages[2], passages[0], passages[1]]
