"""Tiny models that have learned to say one text, with the real tokenizer of a family."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import MistralConfig, MistralForCausalLM

from rolecall.agents.chat_template import Tokenizer, prompt_ids
from rolecall.core.types import Message

WINDOW = 8  # tokens that a layer reads, so that what was learned holds behind any prompt
NUM_ROWS, NUM_NOISE = 24, 12  # random tokens in front of what ends every prompt
NUM_RANDOM = 1024  # tokens that these are drawn from
MOST_STEPS = 400
LEARNED = 1e-3  # nats per token
SHARPER = 4  # times the logits, so that no sample says anything else


def write_parrot(folder: Path, tokenizer: Tokenizer, turn: np.ndarray) -> str:
    """Write a model that answers any prompt with this turn [T]; return its folder.

    It is trained on few tokens of the vocabulary; the logits of all others are 0.
    """
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(0, len(tokenizer), (NUM_RANDOM,), generator=generator)
    end = _prompt_end(tokenizer)
    used, numbers = torch.unique(torch.tensor([*random, *end, *turn]), return_inverse=True)
    noise, fixed = numbers.split([NUM_RANDOM, len(end) + len(turn)])
    small = _train(noise, fixed, len(turn), others=len(tokenizer) - len(used))
    weights = small.state_dict()
    for name, spread in (("model.embed_tokens.weight", 0.02), ("lm_head.weight", 0.0)):
        few = weights.pop(name)
        others = spread * torch.randn(len(tokenizer), few.shape[1], generator=generator)
        weights[name] = others.index_copy(0, used, few)
    weights["lm_head.weight"] *= SHARPER
    whole = MistralForCausalLM(_config(len(tokenizer), eos_token_id=int(turn[-1])))
    whole.load_state_dict(weights)
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _config(vocab_size: int, **options: object) -> MistralConfig:
    return MistralConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=8192,
        sliding_window=WINDOW, tie_word_embeddings=False, **options,
    )  # fmt: skip


def _train(noise: Tensor, fixed: Tensor, length: int, *, others: int) -> MistralForCausalLM:
    """Return a model that says the last `length` of the fixed tokens [T] after the first ones."""
    torch.manual_seed(0)
    model = MistralForCausalLM(_config(int(max(noise.max(), fixed.max())) + 1))
    targets = fixed[-length:].repeat(NUM_ROWS)
    rest = torch.full((len(targets), 1), math.log(others))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(MOST_STEPS):
        before = noise[torch.randint(0, len(noise), (NUM_ROWS, NUM_NOISE))]
        rows = torch.cat([before, fixed.expand(NUM_ROWS, -1)], dim=1)
        states = model.model(rows).last_hidden_state[:, -length - 1 : -1].flatten(0, 1)
        loss = cross_entropy(torch.cat([model.lm_head(states), rest], dim=1), targets)
        if loss < LEARNED:
            return model
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError(f"{loss} nats per token after {MOST_STEPS} steps")


def _prompt_end(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens with which every prompt ends."""
    one, other = (
        prompt_ids(tokenizer, [Message("user", text)], options={}).tolist()
        for text in ("What is 2 + 3?", "Say a word")
    )
    count = next(n for n, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b)
    return one[len(one) - count :]
