"""Replaced parts compute what transformers' own parts do, forward and backward."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from rolecall.models.cpu import fused_layers
from rolecall.models.language_model import copies
from tests.toy import language_model


def gradients(model, ids):
    model.zero_grad()
    out = model(input_ids=ids, use_cache=False).logits
    (out.log_softmax(-1)[..., 3].mean() + out.square().mean()).backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_logits_and_gradients_of_every_family_are_those_of_transformers(any_model_folder):
    models = [
        AutoModelForCausalLM.from_pretrained(any_model_folder).double().float() for _ in range(2)
    ]
    fused_layers.fuse(models[1])
    kinds = {type(module) for module in models[1].modules()}
    assert {fused_layers.Norm, fused_layers.Gated} <= kinds
    torch.manual_seed(0)
    with torch.no_grad():
        for pair in zip(*(model.parameters() for model in models), strict=True):
            change = 0.1 * torch.randn_like(pair[0])
            for parameter in pair:
                parameter += change
    ids = torch.randint(0, models[0].config.vocab_size, (3, 50))
    (theirs, their_grads), (ours, our_grads) = (gradients(model, ids) for model in models)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    for name, wanted in their_grads.items():
        assert (our_grads[name] - wanted).abs().max() <= 2e-5 * wanted.abs().max() + 1e-9, name


@pytest.mark.parametrize("rows", [1, 31, 33, 100])
def test_gradients_are_those_of_the_formula_in_double_precision(rows):
    torch.manual_seed(rows)
    x, y, weight = torch.randn(rows, 24) * 9, torch.randn(rows, 24), torch.randn(24)

    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    def gate(x, y):
        return torch.nn.functional.silu(x) * y

    cases = [
        (lambda a, b: fused_layers.RootMeanSquare.apply(a, b, 1e-6), norm, (x, weight)),
        (fused_layers._Gate.apply, gate, (x * 5, y)),
    ]
    for ours, formula, inputs in cases:
        mine = [i.clone().requires_grad_() for i in inputs]
        exact = [i.double().requires_grad_() for i in inputs]
        found, wanted = ours(*mine), formula(*exact)
        assert torch.allclose(found.double(), wanted, rtol=2e-6, atol=1e-6)
        pull = torch.randn_like(found)
        found.backward(pull)
        wanted.backward(pull.double())
        for a, b in zip(mine, exact, strict=True):
            assert (a.grad - b.grad).abs().max() <= 1e-5 * b.grad.abs().max()


def test_what_computes_something_else_stays_as_it_is(model_folder):
    model = torch.nn.ModuleList([GemmaRMSNorm(24)])
    model[0].variance_epsilon = 1e-6  # looks the same, but adds 1 to its weights
    fused_layers.fuse(model)
    assert type(model[0]) is GemmaRMSNorm
    other = AutoModelForCausalLM.from_pretrained(model_folder)
    for layer in other.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    fused_layers.fuse(other)
    assert type(other.model.layers[0].mlp) is not fused_layers.Gated
    half = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    fused_layers.fuse(half)
    assert not {fused_layers.Norm, fused_layers.Gated} & {type(module) for module in half.modules()}


def test_copies_are_fused_too_and_share_no_weight(model_folder):
    model = language_model(model_folder)
    copy = copies({"p": model})["p"]
    norms = [m for m in copy.model.modules() if isinstance(m, fused_layers.Norm)]
    assert norms
    assert not {m.weight.data_ptr() for m in norms} & {
        p.data_ptr() for p in model.model.parameters()
    }
