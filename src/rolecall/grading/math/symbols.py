r"""Writes the Unicode characters of a maths answer as LaTeX.

write_latex("5√3") -> r"5\sqrt{3}"; write_latex("１０⁻³") -> "10^{-3}"

Full-width characters and mathematical letters become plain ones (NFKC). What NFKC would flatten,
such as superscripts and vulgar fractions, is written as LaTeX before.
"""

# ruff: noqa: RUF001 (characters that look like others are what this file is about)

from __future__ import annotations

import re
from unicodedata import lookup, normalize

NAMES = {  # LaTeX command: characters
    "times": "×", "cdot": "·⋅∙•", "ast": "∗", "pm": "±", "mp": "∓", "infty": "∞", "cup": "∪",
    "cap": "∩", "in": "∈", "notin": "∉", "subset": "⊂", "subseteq": "⊆", "emptyset": "∅⌀",
    "to": "→", "le": "≤≦⩽", "ge": "≥≧⩾", "ne": "≠", "approx": "≈", "equiv": "≡", "int": "∫",
    "partial": "∂", "sum": "∑", "prod": "∏", "langle": "⟨", "rangle": "⟩", "lfloor": "⌊",
    "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "varepsilon": "ε", "epsilon": "ϵ", "phi": "φϕ",
    "theta": "ϑ", "sigma": "ς",
}  # fmt: skip
COMMANDS = (
    "alpha beta gamma delta zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)


def _greek(command: str) -> str:
    size = "CAPITAL" if command[0].isupper() else "SMALL"
    name = command.upper().replace("LAMBDA", "LAMDA")
    return lookup(f"GREEK {size} LETTER {name}")


SYMBOLS = str.maketrans(
    {
        **{symbol: f"\\{name} " for name, symbols in NAMES.items() for symbol in symbols},
        **{_greek(command): f"\\{command} " for command in COMMANDS.split()},
        **dict.fromkeys("−–—‐‑‒", "-"),
        **dict.fromkeys("÷⁄∕", "/"),
        **dict.fromkeys("€£¥₹", ""),  # as a dollar sign
        "°": r"^{\circ}",
        "∶": ":",
        "。": ".",
        "、": ",",
        "∆": r"\Delta ",
    }
)
SETS = str.maketrans({letter: rf"\mathbb{{{normalize('NFKC', letter)}}}" for letter in "ℝℤℚℕℂ"})
MASCULINE = str.maketrans("º˚", "°°")  # often typed for a degree sign
ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
RADICAND = r"\s*+(?:\(([^()√∛∜]*+)\)|(\d++(?:\.\d++)?|[A-Za-z]|\\[A-Za-z]++)|(?=\{))"
ROOT = re.compile("([√∛∜])" + RADICAND)
RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ]+")
REPEATED = re.compile("(?:[0-9][\u0304\u0305\u0307])+")  # digits with a line or a dot above
LOWERED = re.compile("[₀-₉₊₋₌₍₎]+")
VULGAR = re.compile("[¼-¾⅐-⅞↉]")


def write_latex(text: str) -> str:
    """Return the text with LaTeX in place of other than ASCII characters, where there is any."""
    if text.isascii():
        return text
    text = RAISED.sub(lambda match: _script("^", match), text)
    text = LOWERED.sub(lambda match: _script("_", match), text)
    text = VULGAR.sub(_fraction, text.translate(SETS).translate(MASCULINE))
    text = normalize("NFKC", text).translate(SYMBOLS)
    text = REPEATED.sub(lambda match: rf"\overline{{{match[0][::2]}}}", text)
    return ROOT.sub(_root, text)


def _script(mark: str, match: re.Match[str]) -> str:
    inner = normalize("NFKC", match[0]).replace("−", "-")
    is_plain = len(inner) == 1 and not match.string[match.end() : match.end() + 1].isdigit()
    return f"{mark}{inner}" if is_plain else f"{mark}{{{inner}}}"


def _fraction(match: re.Match[str]) -> str:
    over, _, under = normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{over}}}{{{under}}}"


def _root(match: re.Match[str]) -> str:
    radicand = match[2] if match[3] is None else match[3]
    return ROOTS[match[1]] + ("" if radicand is None else f"{{{radicand}}}")
