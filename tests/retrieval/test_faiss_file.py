"""An index that somebody else made with faiss is searched as it is, if it is of the corpus."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rolecall.retrieval.faiss_file import FaissFile
from rolecall.retrieval.opening import open_client, open_index
from tests.retrieval.test_dense import bag

faiss = pytest.importorskip("faiss", reason="faiss is not installed")

TEXTS = ["Ada wrote programs", "Emma is a novel", "Rain falls", "Snow falls"]


def corpus(folder: Path, *, texts=TEXTS, ending: str = "\n") -> Path:
    path = folder / "wiki.jsonl"
    rows = [{"id": str(n), "contents": f'"Title {n}"\n{text}'} for n, text in enumerate(texts)]
    path.write_text("\n".join(map(json.dumps, rows)) + ending)
    return path


def index(folder: Path, *, kind=faiss.IndexFlatIP, size: int = 1024) -> Path:
    made = kind(size)
    made.add(bag(TEXTS)[:, :size].copy())
    faiss.write_index(made, str(folder / "e5_Flat.index"))
    return folder / "e5_Flat.index"


@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_vectors_are_of_the_corpus_s_lines(tmp_path, ending):
    found = FaissFile(index(tmp_path), corpus(tmp_path, ending=ending), model="bag", encode=bag)
    [[novel, _], [rain, snow]] = found.search(["a novel", "Rain falls"], 2)
    assert (novel.id, novel.title, novel.text) == ("1", "Title 1", "Emma is a novel")
    assert [hit.id for hit in (rain, snow)] == ["2", "3"]
    assert rain.score == pytest.approx(1.0)
    assert rain.score > snow.score
    assert [len(hits) for hits in found.search(["falls"], 9)] == [4]


def test_a_shorter_distance_is_a_higher_score(tmp_path):
    flat = index(tmp_path, kind=faiss.IndexFlatL2)
    [[best, other, *_]] = FaissFile(flat, corpus(tmp_path), model="bag", encode=bag).search(
        ["Snow falls"], 3
    )
    assert best.id == "3"
    assert best.score > other.score


def test_a_model_of_the_e5_family_is_asked_with_its_prefix(tmp_path):
    heard = []

    def encode(texts):
        heard.extend(texts)
        return bag(texts)

    places = index(tmp_path), corpus(tmp_path)
    FaissFile(*places, model="intfloat/e5-base-v2", encode=encode).search(["rain"], 1)
    FaissFile(*places, model="other", encode=encode).search(["rain"], 1)
    assert [text for text in heard if "rain" in text] == ["query: rain", "rain"]


def test_what_does_not_belong_together_is_refused(tmp_path):
    made, lines = index(tmp_path), corpus(tmp_path)

    def opened(**changes):
        given = {"index": made, "corpus": lines, "model": "bag", "encode": bag} | changes
        return FaissFile(given.pop("index"), given.pop("corpus"), **given)

    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(
        ValueError, match=r"holds 4 vectors and .* 3 lines: it is of another corpus"
    ):
        opened(corpus=corpus(other, texts=TEXTS[:3]))
    with pytest.raises(ValueError, match="vectors of 64 numbers and model 'bag' makes 1024"):
        opened(index=index(other, size=64))
    with pytest.raises(ValueError, match="is no index that faiss can read"):
        opened(index=lines)
    with pytest.raises(ValueError, match="there is no corpus file"):
        opened(corpus=tmp_path / "nowhere")
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(lines.read_bytes()).replace(b"\n", b" ") + b"\n1\n2\n3")
    with pytest.raises(ValueError, match=r"packed.jsonl:1: "):
        opened(corpus=packed)
    with pytest.raises(ValueError, match="is a file: an index of faiss needs `corpus`"):
        open_index(made, model="bag")
    with pytest.raises(ValueError, match="is a file: an index of faiss needs `corpus`"):
        open_client(index=str(made), corpus=str(lines))


def test_the_identity_is_that_of_index_corpus_and_model(tmp_path):
    made, lines = index(tmp_path), corpus(tmp_path)
    first = FaissFile(made, lines, model="bag", encode=bag).identity
    assert FaissFile(made, lines, model="bag", encode=bag).identity == first
    assert FaissFile(made, lines, model="e5-bag", encode=bag).identity != first
