"""Layers that are trained in two parts have the numbers and gradients of their formula."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, silu
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from rolecall.config.schema import Adapter
from rolecall.models.attention.layouts import Rows
from rolecall.models.attention.prefix_tree import PrefixTreeAttention
from rolecall.models.cpu import trained_layer
from rolecall.models.cpu.parallel import ROWS, rows_at_once
from rolecall.models.cpu.trained_layer import Begin, Finish, Whole
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from tests.toy import CPU

WIDTH, INNER, HEADS, KV_HEADS, SIZE = 40, 72, 4, 2, 24
EPS = 1e-6


def numbers(*shape):
    return torch.randn(*shape) / shape[-1] ** 0.5


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def norm_rope(x, weight, cos, sin):
    x = x.unflatten(1, (-1, SIZE))
    x = norm(x, weight) if len(weight) else x
    half = torch.cat([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], -1)
    return (x * cos[:, None] + half * sin[:, None]).flatten(1)


def begin(x, cos, sin, before, wq, wk, wv, bq, bk, bv, nq, nk):
    x = norm(x, before)
    query, key = linear(x, wq, bq), linear(x, wk, bk)
    return norm_rope(query, nq, cos, sin), norm_rope(key, nk, cos, sin), linear(x, wv, bv)


def finish(x, mixed, before, wo, wg, wu, wd, bo, bg, bu, bd):
    x = x + linear(mixed, wo, bo)
    normed = norm(x, before)
    return x + linear(silu(linear(normed, wg, bg)) * linear(normed, wu, bu), wd, bd)


def same(ours, formula, given, *, rounding=1e-5):
    """Whether what comes out and the gradients by all that is given are those of float64."""
    mine = [None if t is None else t.clone().requires_grad_() for t in given]
    exact = [None if t is None else t.double().requires_grad_() for t in given]
    found, wanted = ours(*mine), formula(*exact)
    pulls = [torch.randn_like(part) for part in found]
    torch.autograd.backward(found, pulls)
    torch.autograd.backward(wanted, [pull.double() for pull in pulls])
    pairs = list(zip(found, wanted, strict=True))
    pairs += [
        (a.grad, b.grad) for a, b in zip(mine, exact, strict=True) if a is not None and len(a)
    ]
    for a, b in pairs:
        assert (a - b).abs().max() <= rounding * b.abs().max()
    return len(pairs)


@pytest.mark.parametrize("rows", [1, 127, 129, 300])
@pytest.mark.parametrize(("with_norms", "biased"), [(True, ""), (False, "qkv"), (False, "v")])
def test_what_comes_before_attention(rows, with_norms, biased):
    torch.manual_seed(rows)
    cos, sin = torch.randn(2, rows, SIZE)
    many, few = HEADS * SIZE, KV_HEADS * SIZE
    sizes = dict(zip("qkv", (many, few, few), strict=True))
    given = [
        3.0 * torch.randn(rows, WIDTH), torch.randn(WIDTH),
        *(numbers(size, WIDTH) for size in sizes.values()),
        *(torch.randn(size) if name in biased else None for name, size in sizes.items()),
        *(torch.randn(SIZE if with_norms else 0) for _ in range(2)),
    ]  # fmt: skip

    def ours(x, *others):
        return Begin.apply(x, cos.flatten(), sin.flatten(), SIZE, EPS, *others)

    def formula(x, *others):
        return begin(x, cos.double(), sin.double(), *others)

    assert same(ours, formula, given) == 3 + 5 + len(biased) + 2 * with_norms


@pytest.mark.parametrize("rows", [1, 127, 129, 300])
@pytest.mark.parametrize("biased", ["", "o", "ogud"])
def test_what_comes_after_attention(rows, biased):
    torch.manual_seed(rows)
    mixed = HEADS * SIZE
    shapes = {"o": (WIDTH, mixed), "g": (INNER, WIDTH), "u": (INNER, WIDTH), "d": (WIDTH, INNER)}
    given = [
        torch.randn(rows, WIDTH), torch.randn(rows, mixed), torch.randn(WIDTH),
        *(numbers(*shape) for shape in shapes.values()),
        *(torch.randn(shape[0]) if name in biased else None for name, shape in shapes.items()),
    ]  # fmt: skip
    count = same(
        lambda x, mixed, *others: [Finish.apply(x, mixed, EPS, *others)],
        lambda *given: [finish(*given)],
        given,
    )
    assert count == 1 + 7 + len(biased)


def test_numbers_of_any_size_are_gated_as_pytorch_does_it():
    """Also where exp(-x) is infinite in float32, or nothing."""
    x = torch.zeros(6, WIDTH)
    x[:, 0] = torch.tensor([-1e4, -100.0, -1.0, 1.0, 100.0, 1e4])
    weights = [torch.eye(size, WIDTH) for size in (WIDTH, INNER, INNER)]
    given = [x, torch.zeros(6, WIDTH), 30.0 * torch.ones(WIDTH), *weights, torch.eye(WIDTH, INNER)]
    given += [None, torch.linspace(-200, 200, INNER), None, None]
    with torch.no_grad():
        found = Finish.apply(*given[:2], EPS, *given[2:])
    wanted = finish(*(None if t is None else t.double() for t in given))
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def test_every_thread_computes_as_many_tokens():
    for threads, number in itertools.product(range(1, 5), range(1, 700)):
        rows = int(rows_at_once.py_func(number, threads))
        blocks = math.ceil(number / rows)
        of_a_thread = rows * math.ceil(blocks / threads)
        assert rows <= ROWS
        assert of_a_thread < number / threads + 4 * math.ceil(number / ROWS)
    assert rows_at_once.py_func(383, 2) == 96


def test_a_part_without_tokens_has_gradients_of_zero():
    weights = [numbers(WIDTH, HEADS * SIZE), numbers(INNER, WIDTH), numbers(INNER, WIDTH)]
    given = [torch.randn(0, WIDTH), torch.randn(0, HEADS * SIZE), torch.randn(WIDTH)]
    mine = [t.requires_grad_() for t in (*given, *weights, numbers(WIDTH, INNER))]
    out = Finish.apply(*mine[:2], EPS, *mine[2:], *[None] * 4)
    out.sum().backward()
    assert out.shape == (0, WIDTH)
    assert all((t.grad == 0).all() for t in mine)


def test_the_numbers_do_not_depend_on_the_number_of_threads():
    """Gradients of weights are added up in other parts, all else has the same bits."""
    torch.manual_seed(0)
    mixed, rows = HEADS * SIZE, 300
    weights = [numbers(WIDTH, mixed), numbers(INNER, WIDTH), numbers(INNER, WIDTH)]
    given = [torch.randn(rows, WIDTH), torch.randn(rows, mixed), torch.randn(WIDTH)]
    given += [*weights, numbers(WIDTH, INNER)]
    found, threads = [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            mine = [t.clone().requires_grad_() for t in given]
            out = Finish.apply(*mine[:2], EPS, *mine[2:], *[None] * 4)
            out.backward(torch.cos(out.detach()))
            found.append([out.detach(), *(t.grad for t in mine)])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        for number, (a, b) in enumerate(zip(found[0], other, strict=True)):
            if number < 3:
                assert torch.equal(a, b)
            assert (a - b).abs().max() <= 1e-5 * a.abs().max()


def logits(model, ids):
    layout = Rows([len(ids)], device=CPU)
    return model(
        input_ids=ids[None], position_ids=layout.position[None], use_cache=False, layout=layout,
        logits_to_keep=0,
    ).logits[0]  # fmt: skip


def test_a_model_with_biases_in_all_layers_trains_as_with_transformers(tmp_path):
    config = LlamaConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=SIZE,
        attention_bias=True, mlp_bias=True, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    made = LlamaForCausalLM(config)
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    made.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path), device=CPU, dtype=torch.float32).model
    assert all(isinstance(layer, Whole) for layer in ours.model.layers)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.arange(50) * 7 % 64
    found, wanted = logits(ours, ids), theirs(input_ids=ids[None]).logits[0]
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    for out in (found, wanted):
        out.log_softmax(-1)[:, 5].sum().backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine.grad - other.grad).abs().max() <= 3e-5 * other.grad.abs().max(), name


@pytest.mark.parametrize("changes", [{"intermediate_size": 44}, {"head_dim": 12}])
def test_a_layer_whose_widths_the_loops_cannot_take_is_left_to_its_modules(tmp_path, changes):
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "head_dim": SIZE} | changes
    config = LlamaConfig(vocab_size=64, num_hidden_layers=1, num_attention_heads=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device=CPU, dtype=torch.float32).model
    assert not isinstance(model.model.layers[0], Whole)


def test_a_layer_too_large_for_so_many_threads_is_left_to_its_modules(model_folder, monkeypatch):
    monkeypatch.setattr(trained_layer, "LARGEST", 1000)
    model = load_model(str(model_folder), device=CPU, dtype=torch.float32).model
    assert not any(isinstance(layer, Whole) for layer in model.model.layers)


def test_a_layer_with_adapters_is_computed_by_its_modules(model_folder, monkeypatch):
    loaded = load_model(str(model_folder), device=CPU, dtype=torch.float32)
    model, calls = loaded.model, []
    apply = Finish.apply
    monkeypatch.setattr(Finish, "apply", lambda *given: (calls.append(1), apply(*given))[1])
    ids = torch.arange(20)
    bare = logits(model, ids)
    assert len(calls) == len(model.model.layers)
    policy = with_adapters(
        loaded, load_tokenizer(str(model_folder)), {"a": Adapter(rank=4)}, seed=0
    )["a"]
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    layout = Rows([20], device=CPU)
    found = policy.logits(ids, layout.position, layout=layout, keep=torch.arange(20))
    assert len(calls) == len(model.model.layers), "no more of them"
    assert (found - bare).abs().max() > 0.1, "what the adapter adds is there"


def test_a_layer_whose_norms_have_other_epsilons_is_left_to_its_modules(model_folder):
    """The loops take one for all of them."""
    model = load_model(str(model_folder), device=CPU, dtype=torch.float32).model
    layer = model.model.layers[0]
    assert trained_layer._fits(layer)
    layer.self_attn.k_norm.variance_epsilon *= 10
    assert not trained_layer._fits(layer)


def test_recomputed_layers_have_the_same_gradients(model_folder):
    plain = load_model(str(model_folder), device=CPU, dtype=torch.float32).model
    again = copy.deepcopy(plain)
    again.gradient_checkpointing_enable()
    again.train()
    parent = np.array([-1, 0, 1, 1, 3, 4], np.int32)
    layout = PrefixTreeAttention(parent, np.array([0, 1, 2, 2, 3, 4], np.int32))
    for model in (plain, again):
        states = model(
            input_ids=torch.arange(6)[None], position_ids=torch.tensor([[0, 1, 2, 2, 3, 4]]),
            use_cache=False, layout=layout, logits_to_keep=0,
        ).logits  # fmt: skip
        states.square().mean().backward()
    for mine, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)
