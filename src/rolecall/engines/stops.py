"""The newest ids of a row in, whether they completed a text that ends its turn out."""

from __future__ import annotations

from rolecall.agents.chat_template import Tokenizer

CUT = "\ufffd"  # what a part of a character is decoded to


class StopTexts:
    """Some texts that end a turn, as one tokenizer writes them."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        # An id holds at least one byte of text.
        self.most = max(len(stop.encode()) for stop in stops) + 4  # ids that are looked at
        # Spaces between ids belong to none of them, so such a text may be completed by any id.
        self._by_any = getattr(tokenizer, "clean_up_tokenization_spaces", True) or any(
            not stop[-1:].strip() for stop in stops
        )
        self._may: dict[int, bool] = {}  # id -> whether its text holds the end of a stop

    def completed(self, newest: list[int]) -> bool:
        """Whether the last of these ids completed a stop.

        Text is decoded only after an id that holds the last character of a stop: few do.
        """
        return self._may_complete(newest[-1]) and self._holds(newest[-self.most :])

    def _holds(self, ids: list[int]) -> bool:
        text = self.tokenizer.decode(ids)
        return any(stop in text for stop in self.stops)

    def _may_complete(self, last: int) -> bool:
        if self._by_any:
            return True
        if last not in self._may:
            text = self.tokenizer.decode([last])
            self._may[last] = CUT in text or any(stop[-1] in text for stop in self.stops)
        return self._may[last]
