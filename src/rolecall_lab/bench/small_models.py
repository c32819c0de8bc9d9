"""Writes folders with random models of named sizes, in which a number is one token.

No turn ends by itself: the end token's id is one that no logit stands for. So lengths are exactly
those that a benchmark asks for, on every side.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rolecall_lab.bench.workload import VOCABULARY

END = "<end>"  # its id is one more than the largest that is sampled
MAX_LENGTH = 2048
QWEN3 = Qwen3Config, Qwen3ForCausalLM
LLAMA = LlamaConfig, LlamaForCausalLM
SIZES: dict[str, dict[str, int]] = {
    "xs": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64,
    },
    "s": {
        "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 384,
    },
    "m": {
        "hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024,
    },
    "r": {  # the shape of smollm2-135m
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536, "vocab_size": 49_152,
    },
    "l": {  # the shape of Qwen3-0.6B
        "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "vocab_size": 151_936,
    },
}  # fmt: skip


def random_model(folder: Path, size: str) -> Path:
    """The folder of a float32 model, made where it is not there yet; the same on every side."""
    target = folder / size
    if (target / "tokenizer.json").is_file():
        return target
    torch.manual_seed(0)
    config, network = LLAMA if size == "r" else QWEN3
    model = network(
        config(
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            **({"vocab_size": vocabulary(size)} | SIZES[size]),
        )
    )
    model.generation_config = GenerationConfig()
    model.save_pretrained(target)
    numbers(vocabulary(size)).save_pretrained(target)
    return target


def vocabulary(size: str) -> int:
    """Tokens that a model of this size can sample."""
    return SIZES[size].get("vocab_size", VOCABULARY)


def numbers(size: int) -> PreTrainedTokenizerFast:
    """ "5 17" -> [5, 17], for numbers below `size`; a chat is what its messages say."""
    words = {str(number): number for number in range(size)} | {END: size}
    inner = Tokenizer(models.WordLevel(words, unk_token="0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=END,
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
        clean_up_tokenization_spaces=False,
    )
