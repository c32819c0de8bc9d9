"""A new tool on one page: how often a letter stands in a word."""

from rolecall import tool


@tool
def letters(word: str, letter: str) -> str:
    """How often a letter stands in a word."""
    if len(letter) != 1:
        raise ValueError(f"{letter!r} is not one letter")  # told to the agent, and counted
    return str(word.lower().count(letter.lower()))
