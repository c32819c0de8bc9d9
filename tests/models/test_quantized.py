"""Bases in 8 or 4 bits: adapters learn beside them, and sampler and learner read the same ones."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.algorithms.sft import Sft
from rolecall.config.load import load
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter
from rolecall.core.errors import ConfigError
from rolecall.learners.local import LocalLearner
from rolecall.learners.mismatch import LARGEST_EXACT
from rolecall.learners.packing import pack
from rolecall.memory.estimate import estimate_memory
from rolecall.memory.suggestions import remedies
from rolecall.models import quantized
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.models.quantized import QuantizedLinear, check_device, linear_layers, num_bytes
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from tests.algorithms.test_every_algorithm import (
    Display,
    StoppedError,
    assert_equal,
    case,
    train,
    trainer_of,
)
from tests.support.evidence import leave_to_evidence
from tests.toy import CPU, relay_config, solo_config, turn, write

pytestmark = pytest.mark.slow

computed = pytest.mark.skipif(
    find_spec("bitsandbytes") is None,
    reason="bitsandbytes, which rounds the weights, is not installed: pip install "
    "'rolecall[quantize]'",
)
each_kind = pytest.mark.parametrize("kind", ["8bit", "4bit"])


def team(folder, policy, **changes) -> dict:
    config = solo_config(folder, **changes)
    config["policies"]["a"] |= policy
    return config


@pytest.mark.parametrize(
    ("policy", "changes", "told"),
    [
        ({}, {}, "4bit cannot be trained; train an adapter beside them (policies.a.adapter.rank"),
        ({"adapter": {}, "base": "tiny:math"}, {}, "tiny:math takes a few megabytes as it is"),
        ({"adapter": {}}, {"engine": "vllm"}, "vLLM samples with weights of its own"),
        (
            {"adapter": {}, "engine": {"name": "sglang", "url": "http://x"}}, {},
            "or policies.a.engine.name=local",
        ),
        ({"adapter": {}}, {"learner": {"name": "fsdp", "ranks": 2}}, "learner.name=local"),
        ({"adapter": {}}, {"learner": {"name": "replicated", "ranks": 2}}, "this process only"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_in_few_bits_is_told_at_once(
    model_folder, tmp_path, policy, changes, told
):
    config = team(model_folder, {"quantization": "4bit", **policy}, **changes)
    with pytest.raises(ConfigError) as raised:
        validate(load(write(tmp_path / "team.yaml", config)))
    lines = [line for line in raised.value.problems if "policies.a.quantization: " in line]
    assert len(lines) == 1
    assert told in lines[0]


def test_adapters_of_one_base_share_its_bits_too(model_folder, tmp_path):
    config = case(model_folder, "adapters")
    config["policies"]["a"]["quantization"] = "8bit"
    with pytest.raises(ConfigError, match=r"policies.b.quantization: adapters of one base share"):
        validate(load(write(tmp_path / "team.yaml", config)))


def test_without_bitsandbytes_it_is_said_what_to_install(model_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    config = team(model_folder, {"quantization": "4bit", "adapter": {}})
    plan = validate(load(write(tmp_path / "team.yaml", config)))
    with pytest.raises(ConfigError, match=r"pip install 'rolecall\[quantize\]'"):
        build(plan)


def test_fewer_bits_are_offered_where_memory_is_short(tmp_path, model_folder):
    base = "Qwen/Qwen3-0.6B"
    config = load(write(tmp_path / "a.yaml", team(model_folder, {"base": base, "adapter": {}})))
    found = {one.change: one.num_bytes for one in remedies(config, auto="cuda:0", gpus=1)}
    assert "policies.a.quantization=4bit" in found
    whole = load(write(tmp_path / "b.yaml", team(model_folder, {"base": base})))
    told = {one.change for one in remedies(whole, auto="cuda:0", gpus=1)}
    assert "policies.a.quantization=4bit" not in told, "trained weights cannot be rounded"
    assert told >= {
        "policies.a.adapter.rank=32",
        "policies.a.adapter.rank=32 policies.a.quantization=4bit",
    }


@computed
@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_near_what_they_were_and_take_the_bytes_that_are_told(
    model_folder, tmp_path, kind, dtype
):
    # As transformers has it: which layers are replaced by faster ones depends on the processor.
    whole = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
    model = load_model(str(model_folder), device=CPU, dtype=dtype, quantization=kind).model
    layers = {n: m for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    full = linear_layers(whole)
    assert layers.keys() == full.keys()
    assert len(layers) == 2 * 7, "all of two layers, and not the head"
    held = 0
    for name, layer in layers.items():
        weight = full[name].weight.float()
        apart = (layer.unpack(torch.float32) - weight).abs()
        assert 0 < apart.max() <= quantized.WORST[kind] * weight.abs().max()
        assert torch.equal(layer.unpack(dtype), layer.unpack(torch.float32).to(dtype))
        constants = {n: x for n, x in layer.named_buffers() if n not in ("code", "outer_code")}
        held += layer.weight.nbytes + sum(x.nbytes for x in constants.values())
    section = team(model_folder, {"quantization": kind, "adapter": {}})
    section["learner"] = {"dtype": str(dtype).removeprefix("torch.")}
    needs = estimate_memory(load(write(tmp_path / "team.yaml", section)), activations="none")
    [told] = [need.num_bytes for need in needs if need.part == f"weights in {kind}"]
    rest = {n: p.nbytes for n, p in model.named_parameters() if n.rpartition(".")[0] not in layers}
    assert held + sum(rest.values()) - told == pytest.approx(0, abs=len(layers) * 8)
    # The rest: the last block of constants, which is not full, and one number that all share.
    assert held - num_bytes(whole, kind) == pytest.approx(0, abs=len(layers) * 8)


@computed
@each_kind
def test_a_layer_computes_with_the_rounded_weights_and_keeps_none_of_them(kind):
    torch.manual_seed(0)
    full = torch.nn.Linear(128, 64)
    layer = QuantizedLinear(full, kind, device=CPU)
    x = torch.randn(5, 128, requires_grad=True)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        found = layer(x)
    assert not kept
    weight = torch.randn(5, 64)
    ours = torch.autograd.grad((found * weight).sum(), x)[0]
    expected = x @ layer.unpack(torch.float32).t() + full.bias
    theirs = torch.autograd.grad((expected * weight).sum(), x)[0]
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(ours, theirs, atol=1e-5)


@computed
def test_a_device_without_kernels_is_told_by_name():
    with pytest.raises(ValueError, match="bitsandbytes cannot hold weights in 4bit on meta"):
        check_device("4bit", torch.device("meta"))


@computed
@pytest.mark.parametrize("kind", leave_to_evidence(["8bit", "4bit"], keep=["4bit"]))
@pytest.mark.parametrize("dtype", leave_to_evidence(["float32", "bfloat16"], keep=["float32"]))
def test_a_run_trains_adapters_alone_and_a_resumed_one_ends_with_the_same_bits(
    model_folder, tmp_path, kind, dtype
):
    config = case(model_folder, "adapters", learner={"dtype": dtype})
    for policy in config["policies"].values():
        policy["quantization"] = kind
    trainer = trainer_of(config, tmp_path / "whole", display := Display())
    models = trainer.run.publisher.models
    assert models["a"].model is models["b"].model
    before = {name: x.clone() for name, x in models["a"].model.state_dict().items()}
    asyncio.run(trainer.train())
    trainer.folder.release()
    after = models["a"].model.state_dict()
    changed = {name for name, x in before.items() if not torch.equal(x, after[name])}
    assert changed
    assert all(".lora_" in name for name in changed)
    most = LARGEST_EXACT if dtype == "float32" else 0.1
    gaps = [value for key, value in display.last.items() if "mismatch" in key and "max" in key]
    assert gaps
    assert max(gaps) <= most
    stopped = trainer_of(config, tmp_path / "again", Display(stop_after=2))
    with pytest.raises(StoppedError):
        asyncio.run(stopped.train())
    stopped.folder.release()
    train(config, tmp_path / "again")
    assert_equal(tmp_path / "whole", tmp_path / "again")


@computed
@each_kind
def test_demonstrations_grow_more_likely_through_a_rounded_base(model_folder, kind):
    base = load_model(str(model_folder), device=CPU, dtype=torch.float32, quantization=kind)
    tokenizer = load_tokenizer(str(model_folder))
    model = with_adapters(base, tokenizer, {"p": Adapter(rank=8, alpha=16.0)}, seed=0)["p"]
    learner = LocalLearner(model, Optimizer(lr=1e-2), total_updates=10)
    turns = [turn(episode=f"e{k}", prompt=[65, 66, 67 + k], tokens=[70, 71, 72]) for k in range(3)]
    for each in turns:
        each.advantages = np.ones(3, np.float32)
    [batch] = pack(turns, budget=100, skip_zero=True, share=True, by_agent=False)

    def likely() -> float:
        with torch.no_grad():
            logprobs = learner.forward(batch).logprobs
        return float((logprobs * torch.from_numpy(batch.mask)).sum())

    before = likely()
    for _ in range(8):
        asyncio.run(learner.update([[batch]], Sft(), per_agent=False))
    assert likely() > 0.7 * before


@computed
def test_a_frozen_policy_is_sampled_from_rounded_weights(model_folder, tmp_path):
    """Beside one that trains all of the same base's weights."""
    config = relay_config(model_folder)
    config["team"]["last"]["trainable"] = False
    config["policies"]["b"]["quantization"] = "8bit"
    config["policies"]["b"].pop("optimizer", None)
    run = build(validate(load(write(tmp_path / "team.yaml", config))))
    kinds = {}
    for name, scheduler in run.engine._schedulers.items():
        parts = scheduler.policies[name].model.modules()
        kinds[name] = sum(isinstance(part, QuantizedLinear) for part in parts)
    assert kinds == {"a": 0, "b": 14}
