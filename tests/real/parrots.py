"""Tiny models that have learned to say one text, with the real tokenizer of a family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import MistralConfig, MistralForCausalLM

from rolecall.agents.chat_template import Tokenizer, prompt_ids
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Message

WINDOW = 8  # tokens that a layer reads, so that what was learned holds behind any prompt
NUM_ROWS, NUM_NOISE = 24, 12  # random tokens in front of what ends every prompt
NUM_RANDOM = 1024  # tokens that these are drawn from
QUESTIONS = ("What is 2 + 3?", "Say a word", "How many coins does Ann have now?")
RESULTS = ("5", "17", "a word")  # of a call
MOST_STEPS = 400
LEARNED = 1e-3  # nats per token
SHARPER = 4  # times the logits, so that no sample says anything else


def write_parrot(
    folder: Path, tokenizer: Tokenizer, turn: np.ndarray, *, tool: JsonObject | None = None
) -> str:
    """Write a model that answers any prompt with this turn [T]; return its folder.

    With a `tool` (its schema) the turn is a call, which it also says behind the call's result. It
    is trained on few tokens of the vocabulary; the logits of all others are 0.
    """
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(0, len(tokenizer), (NUM_RANDOM,), generator=generator)
    ends = _prompt_ends(tokenizer, tool)
    if tool is not None:
        ends += _behind_call(tokenizer, tool, turn)
    fixed = [token for end in ends for token in (*end, *turn)]
    used, numbers = torch.unique(torch.tensor([*random, *fixed]), return_inverse=True)
    noise, *said = numbers.split([NUM_RANDOM, *(len(end) + len(turn) for end in ends)])
    small = _train(noise, said, len(turn), others=len(tokenizer) - len(used))
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


def _train(noise: Tensor, said: list[Tensor], length: int, *, others: int) -> MistralForCausalLM:
    """Return a model that, of each tensor of tokens [T], says the last `length` after the rest."""
    torch.manual_seed(0)
    model = MistralForCausalLM(_config(int(max(noise.max(), *(s.max() for s in said))) + 1))
    targets = said[0][-length:].repeat(NUM_ROWS)
    rest = torch.full((len(targets), 1), math.log(others))
    longest = max(map(len, said)) + NUM_NOISE
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(MOST_STEPS):
        rows = noise[torch.randint(0, len(noise), (NUM_ROWS, longest))]
        for number, row in enumerate(rows):
            own = said[number % len(said)]
            row[-len(own) :] = own
        states = model.model(rows).last_hidden_state[:, -length - 1 : -1].flatten(0, 1)
        loss = cross_entropy(torch.cat([model.lm_head(states), rest], dim=1), targets)
        if loss < LEARNED:
            return model
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError(f"{loss} nats per token after {MOST_STEPS} steps")


def _prompt_ends(tokenizer: Tokenizer, tool: JsonObject | None) -> list[list[int]]:
    """Return the tokens with which every prompt ends, and the last ones of some prompts."""
    tools = [] if tool is None else [tool]
    prompts = [
        prompt_ids(tokenizer, [Message("user", text)], options={}, tools=tools).tolist()
        for text in QUESTIONS
    ]
    last = zip(*(prompt[::-1] for prompt in prompts), strict=False)
    count = next(number for number, tokens in enumerate(last) if len(set(tokens)) > 1)
    return [prompts[0][len(prompts[0]) - count :], *(prompt[-2 * WINDOW :] for prompt in prompts)]


def _behind_call(tokenizer: Tokenizer, tool: JsonObject, call: np.ndarray) -> Iterator[list[int]]:
    """Yield a call and one of its results, as they stand in the prompt that follows."""
    name = tool["function"]["name"]
    question = Message("user", QUESTIONS[0])
    said = Message("assistant", tokenizer.decode(call), call, called=(name,))
    before = prompt_ids(tokenizer, [question], options={}, tools=[tool])
    for result in RESULTS:
        messages = [question, said, Message("tool", result, name=name)]
        prompt = prompt_ids(tokenizer, messages, options={}, tools=[tool])
        yield prompt[len(before) :].tolist()
