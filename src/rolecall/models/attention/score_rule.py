"""Says what a layer does to the scores of its attention beside scaling them.

Legend: N = tokens in the flat row, H / K = query / key-value heads, D = head size, R = rows, L =
tokens of a row that see, S = positions that are seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

SLICE = 256  # tokens whose scores are held at once, where they are computed densely


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """Holds what transformers hands to the attention function of a layer of this kind."""

    window: int | None = None  # a token sees itself and the window - 1 tokens before it
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # [H]: one more score of each head, for no value

    @property
    def is_window(self) -> bool:
        """Return whether there is nothing but a window."""
        return self.softcap is None and self.sinks is None

    def within(self, longest: int) -> ScoreRule | None:
        """Return the rule for rows of at most `longest` tokens; None if nothing is left of it.

        So rows that fit the window cost what they cost without one.
        """
        if self.window is None or self.window < longest:
            return self
        return None if self.is_window else replace(self, window=None)


class Observed:
    """A layout that notes in `rules` with which rule each layer asks it."""

    def __init__(self, layout: Any, rules: dict[int, ScoreRule | None]) -> None:
        self.layout, self.rules = layout, rules

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        rule: ScoreRule | None = None,
    ) -> Tensor:
        self.rules[layer] = rule
        out: Tensor = self.layout.attend(layer, query, key, value, scale=scale, rule=rule)
        return out


def attend_densely(
    query: Tensor, key: Tensor, value: Tensor, *, seen: Tensor, scale: float, rule: ScoreRule
) -> Tensor:
    """Attend under all of a rule but its window, which `seen` holds.

    query [R, H, L, D], key and value [R, K, S, D], seen [R, 1, L, S] -> [R, H, L, D]. Scores and
    their softmax are float32 if the states are of less precision.
    """
    groups = query.shape[1] // key.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (key, value))
    parts = []
    for q, seen_of_q in zip(query.split(SLICE, 2), seen.split(SLICE, 2), strict=True):
        scores = (q @ k.transpose(2, 3)).to(torch.promote_types(q.dtype, torch.float32)) * scale
        if rule.softcap is not None:
            scores = rule.softcap * (scores / rule.softcap).tanh()
        scores = scores.masked_fill(~seen_of_q, -torch.inf)
        total = scores.logsumexp(-1, keepdim=True)
        if rule.sinks is not None:
            total = total.logaddexp(rule.sinks.to(total.dtype)[:, None, None])
        parts.append((scores - total).exp().to(v.dtype) @ v)
    return torch.cat(parts, 2)
