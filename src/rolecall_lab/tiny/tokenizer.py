"""Fits a small byte-level tokenizer with a chat template to texts.

Digits stay single, so that arithmetic is done on digits; tags are one token each; the rest is BPE
over the demonstrations, with all 256 bytes, so any text can be encoded.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def fit(texts: Iterable[str], *, size: int, tags: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `size` tokens, tags and roles included."""
    tags = sorted({*tags, "<think>", "</think>"})
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|\n|[^\s\w]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size - len(tags),
            special_tokens=[END, *ROLES],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=list(ROLES),
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
