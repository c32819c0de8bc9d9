"""Makes text of models and servers safe for a terminal.

Such text may hold control characters that move a terminal's cursor, retitle its window or hide
what follows: they are shown, not sent.
"""

from __future__ import annotations

import unicodedata

# Control characters become their pictures; whatever else is not seen, or turns the direction of
# what follows, becomes U+FFFD. Line ends and tabs stay.
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
UNSEEN_KINDS = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # Unicode's categories
FILLERS = (0x115F, 0x1160, 0x3164, 0xFFA0, 0x034F)  # letters and marks without a shape
SELECTORS = (*range(0xFE00, 0xFE0F), *range(0xE0100, 0xE01F0))  # of variants; not the emoji's


class Signs(dict[int, int]):
    """Maps each character to the one it is shown as, found when it is first met."""

    def __missing__(self, code: int) -> int:
        unseen = unicodedata.category(chr(code)) in UNSEEN_KINDS and chr(code) not in "\n\t"
        self[code] = 0xFFFD if unseen else code
        return self[code]


SIGNS = Signs(PICTURES | dict.fromkeys((*FILLERS, *SELECTORS), 0xFFFD))


def visible(text: str) -> str:
    """Return what a terminal may print: escape (27) becomes U+241B, a zero-width space U+FFFD."""
    return text.translate(SIGNS)
