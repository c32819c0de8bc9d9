"""Distances of answers: known values, and what measuring costs."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.core.diversity import distance, mean_distance, token_bigrams, word_bigrams
from tests.toy import turn


def said(*tokens):
    return token_bigrams([turn("solver", tokens=list(tokens))])


def test_the_same_answer_is_at_distance_0_and_one_without_a_common_bigram_at_1():
    assert distance(said(1, 2, 3), said(1, 2, 3)) == 0.0
    assert distance(said(1, 2, 3), said(4, 5, 6)) == 1.0
    assert distance(said(1), said(1)) == 0.0
    assert distance(said(1), said(2)) == 1.0
    assert distance(frozenset(), frozenset()) == 0.0


def test_answers_that_share_two_of_four_bigrams_are_at_one_half():
    assert distance(said(1, 2, 3), said(1, 2, 4)) == 0.5


def test_the_mean_is_over_pairs_and_one_answer_has_none():
    answers = [said(1, 2, 3), said(1, 2, 4), said(9)]
    assert mean_distance(answers) == pytest.approx((0.5 + 1 + 1) / 3)
    assert mean_distance(answers[:1]) is None


def test_bigrams_do_not_cross_turns_and_words_need_no_tokens():
    one, other = turn("solver", tokens=[1, 2]), turn("solver", tokens=[3])
    assert token_bigrams([one, other]) == {("", 1), (1, 2), ("", 3)}
    one.text = "<think>a b</think>so it is"
    assert word_bigrams([one]) == {("", "so"), ("so", "it"), ("it", "is")}


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_a_distance_is_symmetric_and_from_0_to_1(one, other):
    first, second = said(*one), said(*other)
    assert distance(first, second) == distance(second, first)
    assert 0.0 <= distance(first, second) <= 1.0


def test_16_attempts_of_2000_tokens_are_measured_in_a_moment():
    random = np.random.default_rng(0)
    answers = [turn("solver", tokens=random.integers(0, 50_000, 2000).tolist()) for _ in range(16)]
    started = time.process_time()
    value = mean_distance([token_bigrams([answer]) for answer in answers])
    assert value == pytest.approx(1.0, abs=0.01)
    assert time.process_time() - started < 1.0
