"""Two LoRA policies on one base in one run: trained apart, sampled together, exported as PEFT."""

from __future__ import annotations

import asyncio
import json
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import Linear
from transformers import AutoModelForCausalLM

from rolecall.config.load import load
from rolecall.models.loading import locate
from rolecall.models.lora import MixedLinear
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.collector import Collector
from rolecall.training.run import Run
from tests.algorithms.test_every_algorithm import case, train
from tests.toy import alike, write

pytestmark = pytest.mark.slow

PROMPT, TOKENS = np.arange(10, 20, dtype=np.int32), np.arange(30, 36, dtype=np.int32)


async def says(run: Run, policy: str) -> np.ndarray:
    return await run.engine.score(policy, PROMPT, TOKENS, temperature=1.0)


@pytest.mark.parametrize("copy", [False, True], ids=["the same weights", "separate weights"])
def test_an_adapters_update_reaches_the_sampler_and_only_its_own(model_folder, tmp_path, copy):
    config = case(model_folder, "adapters", engine={"separate_weights": copy})
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    assert run.publisher.models["a"].model is run.publisher.models["b"].model
    folder = RunFolder(tmp_path / "run")
    folder.start(run.config)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(task_factory)
        before = {policy: await says(run, policy) for policy in ("a", "b")}
        assert before["a"] == pytest.approx(before["b"]), "LoRA starts at the base"
        rollout = await Collector(run, folder).collect(1)
        await train_step.credit(run, rollout.episodes)
        await train_step._update_policy(run, "a", rollout.episodes, 1)
        if copy:
            assert np.array_equal(await says(run, "a"), before["a"]), "not published yet"
        await train_step.publish(run, ["a"])
        assert np.abs(await says(run, "a") - before["a"]).max() > 1e-3
        assert np.array_equal(await says(run, "b"), before["b"])

    asyncio.run(main())


def test_two_adapters_share_batches_and_have_learning_rates_of_their_own(model_folder, tmp_path):
    config = case(model_folder, "adapters")
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    assert len(run.engine._distinct) == 1, "one decoder samples for both"
    rates = {name: learner.stepper.config.lr for name, learner in run.learners.items()}
    assert rates == {"a": 1e-3, "b": 3e-3}
    mine, others = (set(map(id, run.learners[p].parameters)) for p in ("a", "b"))
    assert mine
    assert not mine & others


def test_a_trained_adapter_loads_into_plain_peft(model_folder, tmp_path):
    train(case(model_folder, "adapters"), tmp_path / "run")
    run = build(validate(load(tmp_path / "run.yaml")))
    run.restore(tmp_path / "run/checkpoints/step-3")
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = torch.from_numpy(np.concatenate([PROMPT, TOKENS])).long()
    for policy in ("a", "b"):
        folder = tmp_path / f"run/checkpoints/step-3/{policy}"
        peft_model = PeftModel.from_pretrained(base, folder, adapter_name=policy)
        peft_model.set_adapter(policy)
        with torch.no_grad():
            logits = peft_model(ids[None]).logits[0, len(PROMPT) - 1 : -1]
        theirs = logits.log_softmax(-1).gather(-1, ids[len(PROMPT) :, None])[:, 0].numpy()
        ours = asyncio.run(says(run, policy))
        assert alike(ours, theirs)
        base = peft_model.unload()


@pytest.mark.parametrize("base", ["tiny:math", "models/mine"])
def test_an_exported_adapter_names_its_base_as_the_config_does(
    model_folder, tmp_path, monkeypatch, base
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    shutil.copytree(model_folder, tmp_path / "models/mine")
    policies = {
        name: {"base": base, "optimizer": {"lr": 1e-3}, "adapter": {"rank": 2}} for name in "ab"
    }
    config = load(
        write(tmp_path / "c.yaml", {**case(model_folder, "adapters"), "policies": policies})
    )
    run = build(validate(config))
    for policy in "ab":
        folder = tmp_path / policy
        run.publisher.models[policy].save(folder)
        named = json.loads((folder / "adapter_config.json").read_text())
        assert named["base_model_name_or_path"] == base
        layers = named["target_modules"]  # a set in PEFT, which each process orders anew
        assert layers == sorted(layers)
        card = (folder / "README.md").read_text()
        assert f"base_model: {base}" in card
        for file in (*folder.glob("*.json"), folder / "README.md"):
            assert str(locate("tiny:math")) not in file.read_text(), file
            assert str(tmp_path) not in file.read_text(), file
        run.publisher.models[policy].load(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_with_one_adapter_computes_as_pefts_does_and_keeps_no_copy_of_its_states(dtype):
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=6)
    base = torch.nn.Linear(24, 40, dtype=dtype).requires_grad_(False)
    layer = MixedLinear(base, "a", config=config, r=4, lora_alpha=6)
    layer.lora_A.float()
    layer.lora_B.float()
    torch.nn.init.normal_(layer.lora_B["a"].weight)
    states = torch.randn(7, 24).to(dtype).requires_grad_()
    weights = [states, layer.lora_A["a"].weight, layer.lora_B["a"].weight]
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    def numbers(out: torch.Tensor) -> list[torch.Tensor]:
        loss = (out.float() * torch.arange(40)).sum()
        return [out, *torch.autograd.grad(loss, weights)]

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ours = layer(states)
    known = {weight.data_ptr() for weight in (*layer.parameters(), states)}
    assert (
        sum(t.nbytes for t in kept if t.data_ptr() not in known) == 7 * 4 * dtype.itemsize
    )  # down(x)
    bound = 1e-6 if dtype == torch.float32 else 1e-2  # PEFT multiplies in float32
    for mine, theirs in zip(numbers(ours), numbers(Linear.forward(layer, states)), strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine - theirs).norm() <= bound * theirs.norm()
