"""Reads how many GPUs are asked about: one number, a list, or doublings of a range."""

from __future__ import annotations

import re

from rolecall.core.errors import ConfigError

MOST = 100_000


def sizes(text: str) -> list[int]:
    """8 -> [8]; 8,16,64 -> [8, 16, 64]; 8..64 -> [8, 16, 32, 64]. Raises ConfigError."""
    numbers: list[int] = []
    if doublings := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        number, last = int(doublings[1]), int(doublings[2])
        while 1 <= number <= last:
            numbers.append(number)
            number *= 2
        if numbers and numbers[-1] != last:
            numbers.append(last)
    elif re.fullmatch(r"\d+(,\d+)*", text):
        numbers = sorted({int(item) for item in text.split(",")})
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST:
        raise ConfigError(
            f"--gpus: {text!r} is no number of GPUs from 1 to {MOST:,}; write 8, a list 8,16,64, "
            "or doublings 8..1024"
        )
    return numbers
