"""The pass without modules: taken where the logits are the model's own, and only there."""

from __future__ import annotations

import pytest
import torch

from rolecall.config.schema import Adapter
from rolecall.engines.local import llama_pass
from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.cpu.fused_layers import Gated
from rolecall.models.language_model import make_mixture, mixed_logits
from rolecall.models.loading import with_adapters
from rolecall_lab.bench.small_models import random_model
from tests.toy import language_model


def logits(model, ask):
    cache = Cache(
        layers=model.num_layers, pages=30, heads=model.num_kv_heads, size=model.head_size,
        like=next(model.model.parameters()).detach(),
    )  # fmt: skip
    lengths = torch.tensor([40, 3, 17])
    table = torch.arange(9, dtype=torch.int32).view(3, 3)
    layout = Paged(table, torch.zeros(3, dtype=torch.long), lengths, cache=cache)
    torch.manual_seed(0)
    tokens = torch.randint(0, model.vocabulary, (60,))
    with torch.no_grad():
        return ask(tokens, layout, torch.tensor([5, 39, 42, 59]))


def test_the_known_families_are_taken_and_their_logits_are_the_same(any_model_folder):
    model = language_model(any_model_folder)
    plain = llama_pass.plain(model)
    assert plain is not None
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.model.parameters():  # also weights that norms and biases begin with
            parameter += 0.05 * torch.randn_like(parameter)
    theirs = logits(
        model, lambda t, layout, keep: model.logits(t, layout.position, layout=layout, keep=keep)
    )
    ours = logits(model, lambda t, layout, keep: plain.logits(t, layout, keep=keep))
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_a_token_has_the_same_bits_in_a_pass_of_few_tokens_and_of_many(tmp_path):
    """Threads share the tokens of the one, and the columns of weights in the other."""
    model = language_model(random_model(tmp_path, "s"))
    plain = llama_pass.plain(model)
    assert plain is not None
    torch.manual_seed(0)
    tokens = torch.randint(0, model.vocabulary, (120,))

    def compute(tokens):
        layout = plain.rows(torch.full((len(tokens) // 3,), 3))
        return plain.logits(tokens, layout, keep=torch.arange(len(tokens)))

    many = compute(tokens)
    assert torch.equal(torch.cat([compute(few) for few in tokens.split(6)]), many)


@pytest.mark.parametrize("owners", [["one"] * 3, ["one", "two", "one"], ["two", "few", "few"]])
def test_adapters_count_for_their_own_ids(any_model_folder, owners):
    base = language_model(any_model_folder)
    everywhere = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    models = with_adapters(
        base.loaded, base.tokenizer,
        {
            "one": Adapter(rank=4, targets=everywhere),
            "two": Adapter(rank=2, alpha=7, targets=everywhere),
            "few": Adapter(rank=3, targets=["q_proj", "down_proj"]),
        },
        seed=0,
    )  # fmt: skip
    plain = llama_pass.plain(models["one"])
    assert plain is not None
    torch.manual_seed(3)
    for model in models.values():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # they begin with 0
                parameter.data.normal_(std=0.3)
    rows = [models[owner] for owner in owners]

    def mixed(tokens, layout, keep):
        return mixed_logits(
            rows, tokens, layout.position, counts=layout.counts, layout=layout, keep=keep
        )

    def alone(tokens, layout, keep):
        mixture = make_mixture(rows, layout.counts)
        return plain.logits(tokens, layout, keep=keep, mixture=mixture)

    theirs, ours = logits(base, mixed), logits(base, alone)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    bare = logits(base, lambda tokens, layout, keep: plain.logits(tokens, layout, keep=keep))
    assert (bare - theirs).abs().max() > 1e-2 * theirs.abs().max()


class Gelu(Gated):
    def forward(self, x):
        return self.down_proj(torch.nn.functional.gelu(self.gate_proj(x)) * self.up_proj(x))


def other_gate(model):
    model.model.model.layers[1].mlp.__class__ = Gelu


def scaled(model):
    model.model.model.layers[0].register_forward_hook(lambda m, i, out: out * 1.01)


def no_llama(model):
    model.model.model.layers[0].self_attn.q_proj = torch.nn.Sequential(
        model.model.model.layers[0].self_attn.q_proj
    )


def part_rotated(model):
    rotary = model.model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq[:-1]


def half(model):
    model.model.to(torch.float16)


@pytest.mark.parametrize("change", [other_gate, scaled, no_llama, part_rotated, half])
def test_a_model_that_computes_anything_else_is_not_taken(model_folder, change, caplog):
    model = language_model(model_folder)
    change(model)
    assert llama_pass.plain(model) is None
    assert all(told.startswith(str(model_folder)) for told in caplog.messages)
    assert len(caplog.messages) == (change in (scaled, other_gate)), "it looks as if it did"
