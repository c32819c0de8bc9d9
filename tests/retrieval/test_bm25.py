"""BM25 finds passages by their words, in memory and from a folder; broken folders are refused."""

from __future__ import annotations

import json
from math import log

import numpy as np
import pytest

from rolecall.retrieval import bm25
from rolecall.retrieval.base import Passage
from rolecall.retrieval.bm25 import K1, B, Bm25, build_bm25, words
from rolecall.retrieval.folders import MANIFEST, has_index
from rolecall.retrieval.opening import open_index

pytestmark = pytest.mark.slow

PASSAGES = [
    Passage("a", "Ada Lovelace", "Ada wrote the first program."),
    Passage("b", "Charles Babbage", "Babbage built an engine; Ada described it."),
    Passage("c", "Emma", "Emma is a novel of 1815."),
]


def corpus(tmp_path, passages=PASSAGES):
    path = tmp_path / "corpus.jsonl"
    rows = [json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in passages]
    path.write_text("\n".join(rows))
    return path


def ids(hits):
    return [hit.id for hit in hits]


def test_words_are_lower_case_without_stop_words_and_keep_single_letters_and_digits():
    assert words("Where WAS the Bor-Tal born in 1907? x 5") == [
        "where", "bor", "tal", "born", "1907", "x", "5"
    ]  # fmt: skip
    assert words("\u00c6r\u00f8, \u6771\u4eac!") == ["\u00e6r\u00f8", "\u6771\u4eac"]
    assert words("the of ?!") == []


def test_scores_are_those_of_the_formula():
    lengths = [len(words(f"{p.title} {p.text}")) for p in PASSAGES]
    assert lengths == [6, 7, 4]
    norm = K1 * (1 - B + B * 6 / np.mean(lengths))
    idf = log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    [[first, second]] = Bm25.from_passages(PASSAGES).search(["Ada"], 3)
    assert ids([first, second]) == ["a", "b"]
    assert first.score == pytest.approx(idf * 2 / (2 + norm), rel=1e-5)


def test_each_query_of_a_batch_gets_what_it_gets_alone():
    index = Bm25.from_passages(PASSAGES)
    queries = ["ada", "", "the", "unknown words", "novel engine", "1815"]
    together = index.search(queries, 2)
    assert together == [index.search([query], 2)[0] for query in queries]
    assert [ids(hits) for hits in together[1:4]] == [[], [], []]
    assert set(ids(together[4])) == {"b", "c"}
    assert ids(together[5]) == ["c"]


@pytest.mark.parametrize(("topk", "number"), [(1, 1), (2, 2), (3, 2), (50, 2)])
def test_there_are_fewer_hits_where_fewer_passages_match(topk, number):
    [hits] = Bm25.from_passages(PASSAGES).search(["ada"], topk)
    assert len(hits) == number
    assert all(hit.score > 0 for hit in hits)


def test_an_index_in_a_folder_answers_like_one_in_memory(tmp_path):
    path = corpus(tmp_path)
    built = open_index(tmp_path / "index", path)
    path.unlink()
    again = open_index(tmp_path / "index")
    for index in (built, again):
        assert index.search(["ada engine", "x"], 3) == Bm25.from_passages(PASSAGES).search(
            ["ada engine", "x"], 3
        )
    assert built.identity == again.identity
    assert isinstance(again.index.scores["data"], np.memmap)


@pytest.mark.evidence  # it compiles for five seconds
def test_compiled_search_finds_the_same(tmp_path, monkeypatch):
    open_index(tmp_path / "index", corpus(tmp_path))
    monkeypatch.setattr(bm25, "COMPILED_FROM", 3)
    index = open_index(tmp_path / "index")
    assert index.index.backend == "numba"
    queries = ["ada engine", "x", "novel", "ada"]
    assert index.search(queries, 3) == Bm25.from_passages(PASSAGES).search(queries, 3)


def test_an_index_of_another_way_to_count_words_is_refused(tmp_path):
    open_index(tmp_path / "index", corpus(tmp_path))
    told = json.loads((tmp_path / "index" / MANIFEST).read_text())
    told["options"]["k1"] = 1.5
    (tmp_path / "index" / MANIFEST).write_text(json.dumps(told))
    with pytest.raises(ValueError, match="indexed in another way"):
        open_index(tmp_path / "index")


def test_a_passage_without_words_is_kept_and_never_found(tmp_path):
    passages = [Passage("0", "", "the"), *PASSAGES, Passage("4", "", "")]
    index = open_index(tmp_path / "index", corpus(tmp_path, passages))
    assert len(index.passages) == 5
    assert [ids(hits) for hits in index.search(["ada", "novel", "the"], 5)] == [
        ["a", "b"], ["c"], []
    ]  # fmt: skip


def test_an_identity_tells_corpora_and_kinds_apart(tmp_path):
    first = open_index(tmp_path / "1", corpus(tmp_path)).identity
    second = open_index(tmp_path / "2", corpus(tmp_path, PASSAGES[:2])).identity
    assert (
        len(
            {
                first,
                second,
                Bm25.from_passages(PASSAGES).identity,
                Bm25.from_passages(PASSAGES[:2]).identity,
            }
        )
        == 4
    )


def test_an_index_of_another_corpus_is_refused(tmp_path):
    open_index(tmp_path / "index", corpus(tmp_path))
    with pytest.raises(ValueError, match="another corpus"):
        open_index(tmp_path / "index", corpus(tmp_path, PASSAGES[:2]))
    with pytest.raises(ValueError, match="holds a bm25 index, not a dense one"):
        open_index(tmp_path / "index", model="some/model")


def test_a_bad_row_leaves_no_index_and_no_litter(tmp_path):
    path = corpus(tmp_path)
    path.write_text(path.read_text() + '\n{"id": "d"}')
    with pytest.raises(ValueError, match=r"corpus\.jsonl:4: no `contents`"):
        open_index(tmp_path / "index", path)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize("texts", [[], ["the", "of"]])
def test_a_corpus_without_words_is_refused(tmp_path, texts):
    passages = [Passage(str(n), "", text) for n, text in enumerate(texts)]
    with pytest.raises(ValueError, match="no words"):
        build_bm25(iter(passages), tmp_path / "index", corpus="x")
    assert not has_index(tmp_path / "index")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index/thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="not empty"):
        open_index(tmp_path / "index", corpus(tmp_path))
    assert (tmp_path / "index/thesis.txt").read_text() == "years of work"


def test_an_empty_folder_takes_an_index(tmp_path):
    (tmp_path / "index").mkdir()
    assert open_index(tmp_path / "index", corpus(tmp_path)).search(["ada"], 1)[0][0].id == "a"


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "no corpus to build it from"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "is not of a rolecall-index-1"),
        (lambda folder: (folder / MANIFEST).write_text('{"format": "x"}'), "another version"),
        (lambda folder: (folder / "passages.jsonl").write_text("[]"), "passages.jsonl is missing"),
        (lambda folder: (folder / "offsets.npy").unlink(), "offsets.npy is missing or cut"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path, harm, told):
    open_index(tmp_path / "index", corpus(tmp_path))
    harm(tmp_path / "index")
    with pytest.raises(ValueError, match=told):
        open_index(tmp_path / "index")


def test_the_public_corpus_sample_is_found_by_its_titles(shared, tmp_path):
    path = shared / "data/search_r1_corpus.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    index = open_index(tmp_path / "index", path)
    titles = [index.passages[n].title for n in range(10)]
    assert [hits[0].title for hits in index.search(titles, 3)] == titles


DAMAGES = {
    "indices": ("indices.csc.index.npy", lambda a: np.full_like(a, 2**30), "passages that are not"),
    "negative indices": ("indices.csc.index.npy", lambda a: a - 5, "passages that are not there"),
    "falling ends": ("indptr.csc.index.npy", lambda a: a[::-1].copy(), "words begin nowhere"),
    "far ends": ("indptr.csc.index.npy", lambda a: a * 1000, "words begin nowhere"),
    "fewer ends": ("indptr.csc.index.npy", lambda a: a[[0, -1]], "words have no numbers"),
    "fewer scores": ("data.csc.index.npy", lambda a: a[:-1], "scores have no order"),
    "other scores": ("data.csc.index.npy", lambda a: a.astype("S4"), "no list of numbers"),
}


def retouched(folder, name: str) -> None:
    """What whoever changes a file does too: the manifest has its new size."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_tampered_index_is_refused_before_compiled_code_reads_it(damage, tmp_path, monkeypatch):
    """With numba a number that is out of range ended the process."""
    monkeypatch.setattr(bm25, "COMPILED_FROM", 1)
    build_bm25(PASSAGES, tmp_path / "index", corpus="c")
    name, change, told = DAMAGES[damage]
    file = tmp_path / "index" / bm25.FOLDER / name
    np.save(file, change(np.load(file)))
    retouched(tmp_path / "index", name)
    with pytest.raises(ValueError, match=told):
        Bm25.open(tmp_path / "index")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("vocab.index.json", "ada", 10**6), ("vocab.index.json", "ada", -1),
     ("vocab.index.json", "ada", "1"), ("params.index.json", "num_docs", 10**6),
     ("params.index.json", "method", "bm25+"), ("params.index.json", "dtype", "float64")],
)  # fmt: skip
def test_tampered_words_and_settings_are_refused(name, key, value, tmp_path):
    build_bm25(PASSAGES, tmp_path / "index", corpus="c")
    file = tmp_path / "index" / bm25.FOLDER / name
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    retouched(tmp_path / "index", name)
    with pytest.raises(ValueError, match=r"is damaged|cannot be read"):
        Bm25.open(tmp_path / "index")


@pytest.mark.parametrize("change", [lambda a: a - 1, lambda a: a[::-1].copy(), lambda a: a * 2.0])
def test_tampered_offsets_of_passages_are_refused(change, tmp_path):
    build_bm25(PASSAGES, tmp_path / "index", corpus="c")
    file = tmp_path / "index" / "offsets.npy"
    np.save(file, change(np.load(file)))
    retouched(tmp_path / "index", file.name)
    with pytest.raises(ValueError, match=r"passages in .* are damaged"):
        Bm25.open(tmp_path / "index")
