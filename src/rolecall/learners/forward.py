"""Computes what a learner asks of one packed batch: log-probs, entropies and hidden states.

Legend: N = tokens in the batch, M = sampled tokens, K = tokens before them, W = width of a hidden
state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from rolecall.core.types import Batch
from rolecall.learners import logprobs
from rolecall.learners.exact import select_rows
from rolecall.learners.frozen_head import frozen_head_logprobs, is_frozen
from rolecall.learners.logprobs import Entropy
from rolecall.models.attention.layouts import Layout, make_layout
from rolecall.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Row:
    """Holds what is computed of a batch."""

    tokens: Tensor  # [N]
    positions: Tensor  # [N]
    layout: Layout
    keep: Tensor  # [K] the distinct indices that predict sampled tokens
    again: Tensor | None  # [M] which of them predicts each sampled token; None: each in turn
    chosen: Tensor  # [M] the sampled tokens
    temperature: Tensor  # [M]


class LogProbs(Module):
    """Decoder, head and log-probs in one module's forward pass, so that it can be sharded whole."""

    def __init__(self, policy: LanguageModel) -> None:
        super().__init__()
        self.policy = policy
        self.model = policy.model  # a submodule

    def forward(
        self, batch: Batch, *, entropy: Entropy, hidden: bool, adapter_off: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the sampled tokens' log-probs [M], entropies [M] and the head's inputs [M, W].

        The temperature is that of the sampling. Entropies and hidden states are there if they were
        asked for. Raises ValueError for a sampled token that the tokenizer does not have.
        """
        policy = self.policy
        _check_ids(batch, policy.vocabulary)
        row = self.row(batch, device=policy.device)
        ids, chosen = (row.tokens, row.positions), (row.chosen, row.temperature)
        rows = max(1, logprobs.LARGEST_LOGITS // policy.vocabulary)
        states: Tensor | None
        head = policy.model.get_output_embeddings()
        # Not of a reference, which must round as the policy that it is compared with.
        frozen = policy.adapter is not None and entropy != "gradient" and is_frozen(head)
        with policy.using(adapter_off=adapter_off):
            if (frozen or len(row.chosen) > rows) and not policy.capabilities.scales_logits:
                states = policy.states(*ids, layout=row.layout, keep=row.keep)
                states = _repeated(states, row.again)
                if frozen:
                    sampled, entropies = frozen_head_logprobs(
                        head, states, *chosen, entropy=entropy, rows=rows,
                        vocabulary=policy.vocabulary,
                    )  # fmt: skip
                else:
                    sampled, entropies = logprobs.chunked_logprobs(
                        policy.head, states, *chosen, entropy=entropy, rows=rows
                    )
                return sampled, entropies, states.float() if hidden else None
            logits, states = policy.forward(
                *ids, layout=row.layout, keep=row.keep, hidden=hidden, adapter_off=adapter_off
            )
            logits = _repeated(logits, row.again)
            sampled, entropies = logprobs.logits_to_logprobs(logits, *chosen, entropy=entropy)
        return sampled, entropies, None if states is None else _repeated(states, row.again)

    def row(self, batch: Batch, *, device: torch.device) -> Row:
        """Return all tokens of the batch as one row."""
        tokens = torch.from_numpy(batch.tokens).long().to(device)
        target = torch.from_numpy(np.flatnonzero(batch.mask)).to(device)
        keep, again = _reads(batch, device=device)
        return Row(
            tokens=tokens,
            positions=torch.from_numpy(batch.positions).long().to(device),
            layout=make_layout(batch.parent, batch.positions, device=device),
            keep=keep,
            again=again,
            chosen=tokens[target],
            temperature=torch.from_numpy(batch.temperature).to(device)[target],
        )

    def spread(self, batch: Batch, values: Tensor) -> Tensor:
        """Numbers of the sampled tokens [M] where these stand in the batch, else 0: [N]."""
        target = torch.from_numpy(np.flatnonzero(batch.mask)).to(values.device)
        return values.new_zeros(len(batch.tokens)).index_put((target,), values)


def _check_ids(batch: Batch, vocabulary: int) -> None:
    """Compiled loops do not check the ids by which they index logits, so this does."""
    outside = (batch.mask > 0) & ((batch.tokens < 0) | (batch.tokens >= vocabulary))
    if outside.any():
        index = int(outside.argmax())
        raise ValueError(
            f"turn {batch.turn_ids[batch.turn[index]]!r} of {batch.policy!r} sampled token id "
            f"{batch.tokens[index]}, and its tokenizer has {vocabulary} tokens; it was sampled or "
            "tokenized with another tokenizer"
        )


def _reads(batch: Batch, *, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the distinct indices that predict sampled tokens, and each token's [M] among them.

    Turns that share a prompt have their first tokens from one place: it is computed once.
    """
    distinct, inverse = np.unique(batch.parent[batch.mask > 0], return_inverse=True)
    keep = torch.from_numpy(distinct).long().to(device)
    every = len(distinct) == len(inverse) and bool((np.diff(inverse) > 0).all())
    return keep, None if every else torch.from_numpy(inverse).long().to(device)


def _repeated(rows: Tensor, again: Tensor | None) -> Tensor:
    return rows if again is None else select_rows(rows, again)
