"""Texts that end a turn are found where they end, and text is decoded only where one may end."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall.engines.local.stops import StopTexts
from rolecall.models.loading import load_tokenizer

STOPS = [("</answer>",), ("e",), (" ",), ("\n\n", "é"), ("ab ", "zz"), ("\U0001f600",)]


class Counted:
    """A tokenizer whose decoded texts of more than one id are counted."""

    def __init__(self, inner) -> None:
        self.inner, self.decoded = inner, 0
        self.clean_up_tokenization_spaces = inner.clean_up_tokenization_spaces

    def decode(self, ids):
        self.decoded += len(ids) > 1
        return self.inner.decode(ids)


def ends(tokenizer, stops, ids) -> int:
    """The first place at which the text of the ids up to there holds a stop; -1 for none."""
    for place in range(len(ids)):
        if any(stop in tokenizer.decode(ids[: place + 1]) for stop in stops):
            return place
    return -1


@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize("base", ["tiny:math", "letters"])
def test_a_stop_is_found_at_the_id_that_completes_it(model_folder, stops, base):
    tokenizer = load_tokenizer(str(model_folder) if base == "letters" else base)
    random = np.random.default_rng(0)
    text = 'Say </answer> here.\n\nA caf\u00e9, ab zz \U0001f600 and "the end" </answer>'
    found = 0
    for seed in range(20):
        pieces = [text[k : k + 9] for k in random.integers(0, len(text), 6)] if seed else [text]
        ids = [
            i for piece in pieces for i in tokenizer(piece, add_special_tokens=False)["input_ids"]
        ]
        expected = ends(tokenizer, stops, ids)
        texts = StopTexts(tokenizer, stops)
        places = (place for place in range(len(ids)) if texts.is_complete(ids[: place + 1]))
        assert next(places, -1) == expected
        found += expected >= 0
    assert found


def test_text_is_decoded_only_after_ids_that_may_end_a_stop():
    tokenizer = Counted(load_tokenizer("tiny:math"))
    ids = tokenizer.inner("So 3 + 4 = 7. </answer>", add_special_tokens=False)["input_ids"]
    texts = StopTexts(tokenizer, ("</answer>",))
    assert [texts.is_complete(ids[: place + 1]) for place in range(len(ids))].index(True) >= 0
    holding = sum(">" in tokenizer.inner.decode([one]) for one in ids)
    assert tokenizer.decoded == holding < len(ids)
