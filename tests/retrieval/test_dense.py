"""Vectors of passages are searched; short rows stay short; e5 models get their prefixes."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from rolecall.retrieval.base import Passage
from rolecall.retrieval.bm25 import words
from rolecall.retrieval.dense import BATCH, Dense, build_dense, load_encoder
from rolecall.retrieval.opening import open_index

pytestmark = pytest.mark.slow

pytest.importorskip("faiss", reason="faiss is not installed")

PASSAGES = [Passage(str(n), f"t{n}", f"word{n} shared") for n in range(BATCH + 5)]


def bag(texts):
    """Words hashed into 1024 directions, of length 1."""
    vectors = np.zeros((len(texts), 1024), dtype=np.float32)
    for row, text in zip(vectors, texts, strict=True):
        for word in words(text):
            row[crc32(word.encode()) % 1024] += 1.0
    return vectors / np.maximum(1e-9, np.linalg.norm(vectors, axis=1, keepdims=True))


def test_the_nearest_passage_comes_first_with_its_inner_product(tmp_path):
    passages = [Passage("a", "Ada", "wrote programs"), Passage("b", "Emma", "a novel")]
    build_dense(iter(passages), tmp_path / "i", corpus="x", model="bag", encode=bag)
    index = Dense(tmp_path / "i", bag)
    [[best, other], [novel, _]] = index.search(["who wrote programs", "novel"], 2)
    assert (best.id, best.title, best.text) == ("a", "Ada", "wrote programs")
    expected = float(bag(["who wrote programs"])[0] @ bag(["Ada\nwrote programs"])[0])
    assert best.score == pytest.approx(expected)
    assert best.score > other.score
    assert novel.id == "b"


def test_rows_that_faiss_fills_with_minus_one_stay_short(tmp_path):
    build_dense(iter(PASSAGES[:2]), tmp_path / "i", corpus="x", model="bag", encode=bag)
    found = Dense(tmp_path / "i", bag).search(["word0", "word1"], 5)
    assert [sorted(hit.id for hit in hits) for hits in found] == [["0", "1"], ["0", "1"]]


def test_passages_beyond_one_batch_keep_their_numbers(tmp_path):
    build_dense(iter(PASSAGES), tmp_path / "i", corpus="x", model="bag", encode=bag)
    index = Dense(tmp_path / "i", bag)
    assert index.index.ntotal == len(index.passages) == len(PASSAGES)
    last = PASSAGES[-1]
    [hits] = index.search([f"{last.title} {last.text}"], 3)
    assert last.id in [hit.id for hit in hits]


@pytest.mark.parametrize(
    ("model", "e5", "prefixed"),
    [
        ("intfloat/e5-base-v2", None, True),
        ("/models/e5/multilingual-E5-large", None, True),
        ("node5", None, False),
        ("/models/e5/other", None, False),
        ("mine", True, True),
        ("intfloat/e5-base-v2", False, False),
    ],
)
def test_models_of_the_e5_family_get_its_prefixes(tmp_path, model, e5, prefixed):
    seen = []

    def heard(texts):
        seen.extend(texts)
        return bag(texts)

    build_dense(iter(PASSAGES[:1]), tmp_path / "i", corpus="x", model=model, e5=e5, encode=heard)
    Dense(tmp_path / "i", heard).search(["who"], 1)
    plain = ["t0\nword0 shared", "who"]
    assert seen == ([f"passage: {plain[0]}", f"query: {plain[1]}"] if prefixed else plain)


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no passages"):
        build_dense(iter([]), tmp_path / "i", corpus="x", model="bag", encode=bag)
    assert not (tmp_path / "i").exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random BERT of one layer as a sentence-transformers model."""
    library = pytest.importorskip("sentence_transformers", reason="it is not installed")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [str(d) for d in range(10)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=512,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    whole = Transformer(str(folder / "bert"))
    made = library.SentenceTransformer(
        modules=[whole, Pooling(whole.get_embedding_dimension())], device="cpu"
    )
    made.save(str(folder / "model"))
    return str(folder / "model")


def test_a_sentence_transformers_model_builds_and_searches(tmp_path, model):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "contents": "ada wrote"}\n{"id": "2", "contents": "emma 1815"}')
    index = open_index(tmp_path / "i", corpus, model=model)
    [hits] = index.search(["\nemma 1815"], 1)
    assert hits[0].id == "2"
    assert hits[0].score == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(ValueError, match="is of model"):
        open_index(tmp_path / "i", model="another")


def test_texts_are_read_up_to_256_ids(model):
    encode = load_encoder(model)
    long = "a " * 300
    assert np.allclose(encode([long])[0], encode([long + "b c d"])[0])
    assert not np.allclose(encode(["a " * 250])[0], encode(["a " * 250 + "b c d"])[0])


def test_a_model_that_is_nowhere_is_an_error(tmp_path):
    pytest.importorskip("sentence_transformers", reason="it is not installed")
    with pytest.raises(ValueError, match="no model"):
        load_encoder(str(tmp_path / "nothing"))
