"""Passages are ordered for their own query, by scores of a cross-encoder."""

from __future__ import annotations

import pytest

from rolecall.retrieval.base import Hit, Passage
from rolecall.retrieval.reranking import Reranker, load_reranker


def overlap(pairs):
    return [len(set(query.split()) & set(text.split())) for query, text in pairs]


def test_each_query_orders_its_own_passages_and_no_others():
    asked = []
    reranker = Reranker(lambda pairs: asked.extend(pairs) or overlap(pairs))
    found = reranker(
        ["a b", "c", "d"],
        [[Hit("1", "", "x", 9.0), Hit("2", "", "a b", 1.0), Hit("3", "", "a")],
         [], [Passage("4", "t", "d")]],
    )  # fmt: skip
    assert [[(hit.id, hit.score) for hit in hits] for hits in found] == [
        [("2", 2.0), ("3", 1.0), ("1", 0.0)], [], [("4", 1.0)],
    ]  # fmt: skip
    assert asked[-1] == ("d", "t\nd")
    assert len(asked) == 4
    assert reranker([], []) == []


def test_a_cross_encoder_orders(tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="it is not installed")
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"]))
    config = BertConfig(
        vocab_size=6, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    reranker = load_reranker(str(tmp_path / "model"))
    passages = [Passage(name, "", text) for name, text in (("1", "a"), ("2", "b"), ("3", "a b"))]
    [hits] = reranker(["a"], [passages])
    pairs = [("a", f"\n{passage.text}") for passage in passages]
    scores = library.CrossEncoder(str(tmp_path / "model")).predict(pairs).tolist()
    expected = dict(zip("123", scores, strict=True))
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected)
    assert [hit.score for hit in hits] == sorted(scores, reverse=True)
    with pytest.raises(ValueError, match="no model"):
        load_reranker(str(tmp_path / "nothing"))
