"""Products: each gives the exact numbers, follows its weights, and its fastest way is kept."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import logging
import subprocess
import sys

import numpy as np
import pytest
import torch

from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.interfaces.weights import PublishError
from rolecall.engines.local import llama_pass
from rolecall.engines.local.engine import LocalEngine
from rolecall.learners.optimizer import adamw
from rolecall.models.attention.layouts import Rows
from rolecall.models.cpu import product_trials, trained_products
from rolecall.models.cpu.bfloat16_tiles import FLOAT32, VECTORS, bfloat16_way, round_to_pairs
from rolecall.models.cpu.kernels import flat
from rolecall.models.cpu.product_trials import PLAIN, ways_of_training
from rolecall.models.cpu.tiled_products import TiledProduct, laid_out, multiply_together
from rolecall.models.cpu.trained_products import FastLinear
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.runtime.call_tree import IdleBarrier
from tests.algorithms.test_every_algorithm import Display, case, trainer_of
from tests.conftest import make_model
from tests.engines.test_llama import logits
from tests.toy import language_model

TRAINED = {"plain", "onednn"}
EACH_WAY = [FLOAT32, *sorted({VECTORS, bfloat16_way()})]  # on this processor


def weights(dtype=torch.bfloat16, *, outputs=48, inputs=40):
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs, inputs, generator=random).to(dtype)
    return weight, torch.randn(outputs, generator=random).to(dtype)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of its own, and nothing remembered in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(product_trials, "_known", {})
    monkeypatch.setattr(product_trials, "_told", set())
    return tmp_path / "rolecall/products.json"


def multiplied_by(way, weight, bias):
    """A product that takes this way, of those that its type has here."""
    product = TiledProduct(weight, bias)
    product.way = way
    return product


def follows(product, weight):
    x = torch.randn(3, 40)
    before = product.times(x)
    weight.mul_(2.0)
    assert torch.equal(product.times(x), before), "the copy is not asked for yet"
    product.follow()
    assert torch.allclose(product.times(x), 2.0 * before, rtol=1e-5)


@pytest.mark.parametrize("way", EACH_WAY)
@pytest.mark.parametrize("outputs", [1, 8, 31, 48, 96, 100])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 16, 17, 32, 33, 130, 300])
@pytest.mark.parametrize("inputs", [33, 40, 96])
def test_a_product_in_tiles_has_the_numbers_of_float32(rows, outputs, inputs, way):
    dtype = torch.float32 if way == FLOAT32 else torch.bfloat16
    weight, bias = weights(dtype, outputs=outputs, inputs=inputs)
    x, to = torch.randn(rows, inputs), torch.randn(rows, outputs)
    states = x.to(dtype).double()
    for added in (None, bias):
        product = multiplied_by(way, weight, added)
        expected = states @ weight.double().t() + (0.0 if added is None else bias.double())
        size = states.abs() @ weight.double().abs().t()  # of all that is added up
        size += 0.0 if added is None else bias.double().abs()
        assert ((product.times(x) - expected).abs() <= 5e-7 * size).all()
        apart = (product.plus(x, to.clone()) - to - expected).abs()
        assert (apart <= 5e-7 * (size + to.abs())).all()


def test_states_are_rounded_to_bfloat16_as_pytorch_rounds_them():
    """Also those half way between two numbers, and what is no number."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 4096, np.uint32)
    bits[:1024] = bits[:1024] & 0xFFFF0000 | 0x8000  # half way
    bits[1024:1032] = (0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF, 1, 0x7F7FFFFF)
    x = torch.from_numpy(bits.view(np.float32)).view(128, 32)
    pairs = np.empty(128 * 16, np.float32)
    round_to_pairs(flat(x), 32, pairs)
    rounded = torch.from_numpy(pairs).view(torch.bfloat16).view(128, 32)
    assert torch.equal(rounded.isnan(), x.isnan())
    assert torch.equal(rounded.nan_to_num(), x.to(torch.bfloat16).nan_to_num())


@pytest.mark.parametrize("rows", [0, 1, 127, 256, 300])
@pytest.mark.parametrize("number", [2, 3])
def test_products_together_have_the_bits_of_each_alone(rows, number):
    random = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 48, generator=random)
    matrices = [torch.randn(width, 48, generator=random) for width in (72, 32, 41)]
    biases = [torch.randn(72, generator=random), None, torch.randn(41, generator=random)]
    outs = [torch.full((rows, len(weight)), 7.0) for weight in matrices]
    none = np.zeros(0, np.float32)
    products = tuple(
        (laid_out(weight), none if bias is None else bias.numpy(), np.uintp(len(weight)), flat(out))
        for weight, bias, out in zip(matrices, biases, outs, strict=True)
    )
    multiply_together(flat(x), products, number, 48, FLOAT32, True)
    for p, out in enumerate(outs):
        alone = TiledProduct(matrices[p], biases[p]).times(x)
        expected = alone if p < number else torch.full_like(out, 7.0)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_in_tiles_follows_its_weight(dtype):
    weight, _ = weights(dtype)
    follows(TiledProduct(weight, None), weight)


def test_a_product_in_tiles_follows_its_bias_and_adapter():
    weight, bias = weights(torch.float32)
    down, up, x = torch.randn(4, 40), torch.randn(48, 4), torch.randn(3, 40)
    product = TiledProduct(weight, bias, low_rank=(down, up, 0.5))
    for changed in (bias, down, up):
        changed.mul_(3.0)
        product.follow()
        wanted = x @ (weight.float() + 0.5 * up @ down).t() + bias.float()
        assert torch.allclose(product.times(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", EACH_WAY)
def test_a_row_is_multiplied_alike_whatever_rows_are_beside_it(way):
    weight, bias = weights(torch.float32 if way == FLOAT32 else torch.bfloat16, outputs=100)
    product, x = multiplied_by(way, weight, bias), torch.randn(300, 40)
    together = product.times(x)
    for start, stop in ((0, 1), (1, 3), (3, 130), (130, 137), (137, 300)):
        assert torch.equal(product.times(x[start:stop]), together[start:stop])


@torch.no_grad()
def told_by(model, prompt, tokens):
    """Log-probs of tokens by the model's own modules, which the engine does not sample from."""
    ids = torch.from_numpy(np.concatenate([prompt, tokens])).long()
    return model.logprobs(ids)[len(prompt) - 1 :].numpy()


def step(model):
    """Change all weights as the optimizer does, which PyTorch does not count."""
    parameters = [parameter for _, parameter in model.named_parameters()]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    adamw(Optimizer(lr=0.1), parameters, undecayed=set()).step()


def test_publish_moves_the_sampler_whose_weights_are_laid_out(model_folder):
    model = language_model(model_folder)
    engine = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.01)
    prompt = np.arange(5, 25, dtype=np.int32)

    async def gap(number):
        request = Request(f"r{number}", "p", prompt, Sampling(max_tokens=8), 0, ("t", 0, (number,)))
        [said] = await engine.generate(request)
        return np.abs(said.logprobs - told_by(model, prompt, said.tokens)).max()

    async def both():
        first = await gap(0)
        step(model)
        engine.load("p", 1, None)
        return first, await gap(1)

    assert max(asyncio.run(both())) <= 1e-4


def test_publish_moves_the_sampler_in_bfloat16(model_folder):
    """What it then says is what a sampler says that is made after the step."""
    loaded = load_model(str(model_folder), device=torch.device("cpu"), dtype=torch.bfloat16)
    model = LanguageModel(loaded, load_tokenizer(str(model_folder)))
    engine = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.01)
    [scheduler], ids = engine._distinct, torch.arange(40) * 7 % model.vocabulary

    def told(one):
        return one.read("p", ids, keep=torch.arange(40)).clone()

    before = told(scheduler)
    step(model)
    engine.load("p", 1, None)
    [new] = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.01)._distinct
    assert torch.equal(told(scheduler), told(new))
    assert (told(new) - before).abs().max() > 0.1 * before.abs().max(), "the step changes it"


def test_in_bfloat16_the_pass_is_nearer_to_float32_than_the_model_itself(model_folder):
    exact = language_model(model_folder)
    rounded = load_model(str(model_folder), device=torch.device("cpu"), dtype=torch.bfloat16)
    model = LanguageModel(rounded, exact.tokenizer)
    with torch.no_grad():
        for mine, theirs in zip(exact.model.parameters(), model.model.parameters(), strict=True):
            mine.copy_(theirs)

    def asked(one):
        return lambda t, layout, keep: one.logits(t, layout.position, layout=layout, keep=keep)

    plain = llama_pass.plain(model)
    assert plain is not None
    ours = logits(exact, lambda t, layout, keep: plain.logits(t, layout, keep=keep))
    theirs, wanted = logits(model, asked(model)), logits(exact, asked(exact))
    assert (ours - wanted).abs().mean() < (theirs - wanted).abs().mean()
    assert (ours - wanted).abs().max() <= 0.02 * wanted.abs().max()


def test_what_was_tried_is_the_same_in_every_later_process(cache):
    ways = ways_of_training(64, 32)
    assert set(ways) <= TRAINED
    [(machine, table)] = json.loads(cache.read_text()).items()
    assert "torch" in machine
    assert table == {"float32 64x32 in training": list(ways)}
    # Whatever stands there is what a later process takes: it does not try again.
    table["float32 64x32 in training"] = ["onednn", "plain", "onednn"]
    cache.write_text(json.dumps({machine: table}))
    code = (
        "import torch; torch.set_num_threads(%d); "
        "from rolecall.models.cpu.product_trials import ways_of_training; "
        "print(*ways_of_training(64, 32))"
    )
    code %= torch.get_num_threads()
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == table["float32 64x32 in training"]


@pytest.mark.parametrize(
    "written", ["", "[]", "{", '{"m": 3}', '{"m": {"float32 64x32 in training": ["no"]}}']
)
def test_a_damaged_file_is_as_none(cache, written):
    cache.parent.mkdir()
    cache.write_text(written.replace('"m"', json.dumps(product_trials.machine_name())))
    assert set(ways_of_training(64, 32)) <= TRAINED
    table = json.loads(cache.read_text())[product_trials.machine_name()]
    assert len(table["float32 64x32 in training"]) == 3


def test_without_a_cache_folder_products_are_plain_and_one_line_says_so(cache, caplog):
    cache.parent.write_text("a file, where the folder should be")
    with caplog.at_level(logging.WARNING, "rolecall"):
        assert ways_of_training(64, 32) == PLAIN
        assert ways_of_training(64, 32) == PLAIN
        assert ways_of_training(32, 64) == PLAIN, "of another size, too"
    [line] = caplog.messages
    assert line.startswith("products are not tried, the plain ones are used: ")


def test_a_product_that_gives_other_numbers_is_not_taken(monkeypatch):
    def multiply(x, weight, way):
        wrong = torch.zeros(weight.shape[0])  # the fastest of all
        return wrong.expand(len(x), -1) if way == "onednn" else x @ weight.t()

    monkeypatch.setattr(product_trials, "has_onednn", lambda dtype: True)
    monkeypatch.setattr(product_trials, "multiply", multiply)
    assert product_trials.try_training_ways(64, 32) == PLAIN


def test_a_way_must_be_faster_by_a_tenth(monkeypatch):
    took = {"plain": 1.0, "onednn": 0.95, "packed": 0.5}
    monkeypatch.setattr(product_trials, "_seconds", lambda work, x: took[work])
    fastest = product_trials._fastest
    x = torch.zeros(1, 1)
    assert fastest({"plain": "plain", "onednn": "onednn"}, x) == "plain"
    assert fastest({"plain": "plain", "onednn": "onednn", "packed": "packed"}, x) == "packed"


@pytest.mark.parametrize("shape", [(100, 40), (2, 50, 40)])
@pytest.mark.parametrize("ways", list(itertools.product(["plain", "onednn"], repeat=3)))
def test_a_layer_trains_with_the_plain_numbers_in_every_way(ways, shape):
    """Its output and the gradients of states, weight and bias."""
    torch.manual_seed(0)
    plain, x, grad = torch.nn.Linear(40, 48), torch.randn(shape), torch.randn(*shape[:-1], 48)
    fast = copy.deepcopy(plain)
    fast.__class__, fast.ways = FastLinear, ways
    found = []
    for layer in (plain, fast):
        states = x.clone().requires_grad_()
        out = layer(states)
        out.backward(grad)
        found.append([out, states.grad, layer.weight.grad, layer.bias.grad])
    for wanted, given in zip(*found, strict=True):
        assert (given - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_a_frozen_layer_has_only_the_gradient_of_its_input():
    layer = torch.nn.Linear(40, 48).requires_grad_(False)
    layer.__class__, layer.ways = FastLinear, ("onednn",) * 3
    x = torch.randn(100, 40, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert torch.allclose(x.grad, layer.weight.sum(0).expand_as(x), atol=1e-5)


def adapted(folder, *names, dtype=torch.float32, std=0.1):
    """Policies of one base, whose adapters change what it says."""
    model = load_model(str(folder), device=torch.device("cpu"), dtype=dtype)
    made = with_adapters(
        model, load_tokenizer(str(folder)), {name: Adapter(rank=4) for name in names}, seed=0
    )
    for policy in made.values():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=std, generator=torch.Generator().manual_seed(5))
    return made


@pytest.mark.parametrize("adapter", [False, True])
def test_a_model_trains_alike_where_onednn_is_the_fastest(any_model_folder, adapter, monkeypatch):
    """And its pass without modules still samples from it."""
    found = []
    for way in ("plain", "onednn"):
        monkeypatch.setattr(trained_products, "ways_of_training", lambda *size, w=way: (w,) * 3)
        folder = any_model_folder
        model = adapted(folder, "a")["a"] if adapter else language_model(folder)
        assert (way == "onednn") == any(type(m) is FastLinear for m in model.model.modules())
        assert llama_pass.plain(model) is not None
        ids = torch.arange(90) * 7 % model.vocabulary
        layout = Rows([90], device=model.device)
        out = model.logits(ids, layout.position, layout=layout, keep=torch.arange(90))
        out.log_softmax(-1)[:, 5].sum().backward()
        gradients = [p.grad for _, p in model.named_parameters() if p.grad is not None]
        found.append([out.detach(), *gradients])
    assert len(found[0]) == len(found[1]) > 10
    for wanted, given in zip(*found, strict=True):
        assert (given - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@pytest.mark.usefixtures("cache")
def test_ways_of_training_are_tried_once_and_kept(monkeypatch):
    first = product_trials.ways_of_training(48, 40)
    assert set(first) <= TRAINED
    monkeypatch.setattr(product_trials, "_known", {})  # as in another process
    monkeypatch.setattr(product_trials, "try_training_ways", None)
    assert product_trials.ways_of_training(48, 40) == first


@pytest.mark.parametrize("follow", [True, False])
def test_old_copies_of_weights_stop_a_run_after_its_first_step(follow, model_folder, tmp_path):
    """A sampler whose copies do not follow: the probe after the publication sees it."""
    trainer = trainer_of(case(model_folder, "grpo"), tmp_path / "run", Display())
    for scheduler in trainer.run.engine._distinct:
        for made in scheduler.llama.made:
            made.follow = made.follow if follow else lambda: None
    if follow:
        asyncio.run(trainer.train())
    else:
        with pytest.raises(PublishError, match="the sampler's log-probs are off by"):
            asyncio.run(trainer.train())


def test_an_adapter_that_samples_alone_is_part_of_the_weights_and_follows_its_steps(
    any_model_folder,
):
    policies = adapted(any_model_folder, "p")
    engine, model = LocalEngine(policies, barrier=IdleBarrier()), policies["p"]
    [scheduler] = engine._distinct
    assert scheduler.llama.merged
    assert all(part.adapted is None for part in scheduler.llama.layers[0].projections)
    ids, keep = torch.arange(40) * 7 % model.vocabulary, torch.arange(40)

    def gap():
        with torch.no_grad():
            layout = Rows([40], device=model.device)
            wanted = model.logits(ids, layout.position, layout=layout, keep=keep)
            found = scheduler.read("p", ids, keep=keep)
        return float((found - wanted).abs().max() / wanted.abs().max())

    assert gap() <= 1e-4
    step(model)
    assert gap() > 1e-2, "the step changes what is said"
    engine.load("p", 1, None)
    assert gap() <= 1e-4


def test_adapters_that_sample_together_or_over_rounded_weights_stay_apart(tmp_path):
    folder = make_model(tmp_path, "qwen3", spread=0.02)  # so even that rounding changes little
    both = LocalEngine(adapted(folder, "p", "q"), barrier=IdleBarrier())
    rounded = adapted(folder, "p", dtype=torch.bfloat16, std=0.01)
    for engine in (both, LocalEngine(rounded, barrier=IdleBarrier())):
        [scheduler] = engine._distinct
        assert scheduler.llama is not None
        assert not scheduler.llama.merged
