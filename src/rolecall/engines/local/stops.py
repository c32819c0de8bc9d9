"""Says whether the newest tokens of a row completed a text that ends its turn."""

from __future__ import annotations

from rolecall.agents.chat_template import Tokenizer

CUT = "\ufffd"  # what a part of a character is decoded to


class StopTexts:
    """Some texts that end a turn, as one tokenizer writes them."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        # A token holds at least one byte of text.
        self.most = max(len(stop.encode()) for stop in stops) + 4  # tokens that are looked at
        # Spaces between tokens belong to none of them, so any token may complete such a text.
        self._by_any = getattr(tokenizer, "clean_up_tokenization_spaces", True) or any(
            not stop[-1:].strip() for stop in stops
        )
        self._may: dict[int, bool] = {}  # token -> whether its text holds the end of a stop

    def is_complete(self, newest: list[int]) -> bool:
        """Return whether the last of these tokens completed a stop.

        Text is decoded only after a token that holds the last character of a stop: few do.
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
