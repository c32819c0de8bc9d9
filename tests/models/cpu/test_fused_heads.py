"""Fused attention and a last layer without idle rows compute what transformers' modules do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM

from rolecall.models.attention.prefix_tree import PrefixTreeAttention
from rolecall.models.cpu.fused_attention import Heads, _NormRope
from rolecall.models.cpu.trained_layer import Whole
from rolecall.models.last_layer import Trimmed
from rolecall.models.loading import load_model
from tests.toy import CPU

SIZE = 50
KEEP = torch.tensor([4, 9, 9, 30, 49])  # one id is followed by two


def test_logits_and_gradients_of_every_family_are_those_of_transformers(any_model_folder):
    ours = load_model(str(any_model_folder), device=CPU, dtype=torch.float32).model
    theirs = AutoModelForCausalLM.from_pretrained(any_model_folder, attn_implementation="eager")
    layers = ours.model.layers
    assert all(isinstance(layer.self_attn, Heads) for layer in layers)
    assert [isinstance(layer, Trimmed) for layer in layers] == [False, True]
    assert all(isinstance(layer, Whole) for layer in layers)
    torch.manual_seed(0)
    with torch.no_grad():
        for pair in zip(ours.parameters(), theirs.parameters(), strict=True):
            change = 0.1 * torch.randn_like(pair[0])
            for parameter in pair:
                parameter += change
    ids = torch.randint(0, ours.config.vocab_size, (1, SIZE))
    chain = np.arange(SIZE, dtype=np.int32)
    found = ours(
        input_ids=ids, position_ids=torch.arange(SIZE)[None], use_cache=False,
        layout=PrefixTreeAttention(chain - 1, chain), keep=KEEP, logits_to_keep=0,
    ).logits[0]  # fmt: skip
    wanted = theirs(input_ids=ids, use_cache=False).logits[0, KEEP]
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    for logits in (found, wanted):
        (logits.log_softmax(-1)[..., 3].mean() + logits.square().mean()).backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine.grad - other.grad).abs().max() <= 3e-5 * other.grad.abs().max() + 1e-9, name


@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("rows", [1, 33, 70])
def test_gradients_are_those_of_the_formula_in_double_precision(rows, with_norm):
    torch.manual_seed(rows)
    heads, size, eps = 3, 8, 1e-6
    states, weight = torch.randn(rows, heads * size) * 4, torch.randn(size if with_norm else 0)
    cos, sin = torch.randn(2, rows, size)

    def formula(x, weight):
        x = x.unflatten(1, (heads, size))
        if with_norm:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        half = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return (x * cos.double()[:, None] + half * sin.double()[:, None]).flatten(1)

    mine = [x.clone().requires_grad_() for x in (states, weight)]
    exact = [x.double().requires_grad_() for x in (states, weight)]
    found = _NormRope.apply(*mine, eps, cos.flatten(), sin.flatten(), size)
    wanted = formula(*exact)
    assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-5)
    pull = torch.randn_like(found)
    found.backward(pull)
    wanted.backward(pull.double())
    for a, b in list(zip(mine, exact, strict=True))[: 1 + with_norm]:
        assert (a.grad - b.grad).abs().max() <= 1e-5 * b.grad.abs().max()


def test_angles_of_another_size_are_refused_before_the_loops_read_them():
    with pytest.raises(ValueError, match="only a part of a head"):
        _NormRope.apply(torch.randn(4, 16), torch.zeros(0), 0.0, torch.ones(8), torch.ones(8), 8)


def test_a_layer_that_computes_something_else_stays_as_it_is(tmp_path):
    config = GraniteConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, residual_multiplier=0.3,
        initializer_range=0.3,
    )  # fmt: skip
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), device=CPU, dtype=torch.float32)
    model = loaded.model
    assert all(isinstance(layer.self_attn, Heads) for layer in model.model.layers)
    assert not any(isinstance(layer, (Trimmed, Whole)) for layer in model.model.layers)
    assert not loaded.capabilities.is_trimmed
