"""A head that is padded beyond its tokenizer: the ids that no text has are never sampled."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
import transformers

from rolecall.config.schema import Adapter
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.engines.local.engine import LocalEngine
from rolecall.learners.forward import LogProbs
from rolecall.learners.packing import join
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.runtime.call_tree import IdleBarrier
from rolecall_lab.tiny.tokenizer import fit
from tests.toy import CPU, turn

PADDING = 200  # ids, two in five of the head


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """A random model whose head has more rows than its tokenizer has tokens."""
    folder = tmp_path_factory.mktemp("padded")
    tokenizer = fit([], size=300, tags=())
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer) + PADDING, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=64,
        max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def policies(folder, kind: str) -> LanguageModel:
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    base, tokenizer = load_model(str(folder), device=CPU, dtype=dtype), load_tokenizer(str(folder))
    if kind == "adapter":
        return with_adapters(base, tokenizer, {"p": Adapter(rank=4)}, seed=0)["p"]
    return LanguageModel(base, tokenizer)


@pytest.mark.parametrize("kind", ["whole", "adapter", "bfloat16"])
def test_padded_ids_are_neither_sampled_nor_counted_by_sampler_and_learner(padded, kind):
    model = policies(padded, kind)
    engine = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.01)
    prompt = np.arange(5, 25, dtype=np.int32)
    request = Request("r", "p", prompt, Sampling(max_tokens=20), 0, ("r", 0, (0,)), n=40)
    completions = asyncio.run(engine.generate(request))
    assert max(one.tokens.max() for one in completions) < len(model.tokenizer)
    close = 0.1 if kind == "bfloat16" else 1e-4
    for one in completions:
        batch = join([[turn(prompt=prompt, tokens=one.tokens)]])
        learned, *_ = LogProbs(model)(batch, entropy=False, hidden=False)
        assert np.abs(learned.detach().numpy() - one.logprobs).max() < close


def test_logits_are_those_of_the_tokens_alone(padded):
    model = policies(padded, "whole")
    ids = torch.arange(5, 25)
    transformed = transformers.AutoModelForCausalLM.from_pretrained(padded).eval()
    with torch.no_grad():
        plain = transformed(input_ids=ids[None], use_cache=False).logits[0, :-1]
        expected = plain[:, : len(model.tokenizer)].log_softmax(-1).gather(-1, ids[1:, None])
        found = model.logprobs(ids)
    assert torch.allclose(found, expected[:, 0], atol=1e-4)
