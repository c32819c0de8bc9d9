"""Whole runs with `device: cuda` on a CPU that pretends to be one: nothing is left on the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rolecall.config.optimizer import Optimizer
from rolecall.core.interfaces.engine import Completion, Request, Sampling
from rolecall.doctor import machine_check
from rolecall.engines.local import cuda_graphs
from rolecall.engines.local.engine import LocalEngine
from rolecall.engines.local.scheduler import Scheduler
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import join
from rolecall.models.attention import flex, flex_proof
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.training.trainer import Trainer
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.families import TOKENIZER, make
from tests.pretend_gpu import OnGpu, PretendGpu, pretend_gpu
from tests.pretend_kernels import (
    Replayed,
    attend_by_mask,
    attention_by,
    pretend_kernels,
    record,
)
from tests.support.evidence import leave_to_evidence
from tests.toy import LIKE_GRPO, algorithm_cases, crew_config, turn

pytestmark = pytest.mark.slow

NAMES = [name for name in algorithm_cases(Path("x")) if name not in LIKE_GRPO]
KINDS = ["qmix"]  # adapters, heads and other critics are left to `make evidence`

RULED = ["Mistral", "Gemma2", "GraniteSWA"]


def learnt(config: dict, folder: Path) -> dict[str, Tensor]:
    """By how much a run changes each weight of each policy."""
    trainer = trainer_of(config, folder, Display())
    before = weights(trainer)
    asyncio.run(trainer.train())
    return {name: value - before[name] for name, value in weights(trainer).items()}


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {
        f"{policy}.{name}": (tensor.inner if isinstance(tensor, OnGpu) else tensor).clone()
        for policy, model in trainer.run.publisher.models.items()
        for name, tensor in model.weights().items()
    }


def test_what_pretends_to_be_a_gpu_keeps_its_tensors_apart():
    with pretend_gpu() as gpu:
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert there.device == gpu
        assert (there + here.to(gpu)).cpu().tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(RuntimeError, match="on one device"):
            there + here
        with pytest.raises(RuntimeError, match="on one device"):
            here[torch.arange(2, device=gpu)]
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x.tolist(), lambda x: x.cpu(),
        lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: x[torch.arange(2)],
        lambda x: torch.ones(3).to(x.device), lambda x: x.copy_(torch.ones(3)),
    ],
)  # fmt: skip
def test_waiting_is_noticed(wait):
    with pretend_gpu() as gpu:
        there = torch.ones(3, device=gpu)
        before = PretendGpu.waited
        there[there.long()] += (there * 2).where(there > 0, 0.0)
        assert PretendGpu.waited == before
        wait(there)
        assert PretendGpu.waited > before


@pytest.fixture
def recording() -> Iterator[None]:
    with pretend_kernels():
        yield


@pytest.fixture
def replace_kernels() -> Iterator[Callable[[Any, Any], None]]:
    """Other functions take the place of FlexAttention's kernels until the test ends."""
    with ExitStack() as stack:
        yield lambda plain, under_rule: stack.enter_context(attention_by(plain, under_rule))


@pytest.mark.parametrize("rows", [1, 6])
def test_a_step_waits_once_for_the_device_however_many_rows_have_stop_texts(
    model_folder, recording, monkeypatch, rows
):
    waits, step = [], Scheduler.step

    def counted(decoder):
        waited, before = PretendGpu.waited, (decoder.num_read, len(decoder.active))
        recorded = Replayed.recorded
        step(decoder)
        # None came, none ended, and none was recorded, which is tried out.
        if (decoder.num_read, len(decoder.active)) == before and recorded == Replayed.recorded:
            waits.append(PretendGpu.waited - waited)

    monkeypatch.setattr(Scheduler, "step", counted)
    sampling = Sampling(max_tokens=6, stop=("no such text",))

    async def all_of_them(made: LocalEngine) -> None:
        await asyncio.gather(
            *(
                made.generate(
                    Request(
                        f"{place}", "p", np.array([65, 66, 67], np.int32), sampling, place,
                        ("t", place, (0,)),
                    )
                )
                for place in range(rows)
            )
        )  # fmt: skip

    with pretend_gpu() as gpu:
        base = load_model(str(model_folder), device=gpu, dtype=torch.float32)
        model = LanguageModel(base, load_tokenizer(str(model_folder)))
        asyncio.run(all_of_them(LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.01)))
    assert set(waits) == {1}


def sampled_and_trained(
    folder: Path, prompt: np.ndarray, device: torch.device
) -> tuple[list[Completion], Tensor]:
    """Three answers, and what the learner says of them."""
    base = load_model(str(folder), device=device, dtype=torch.float32)
    model = LanguageModel(base, TOKENIZER)
    made = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.003)
    request = Request("r", "p", prompt, Sampling(max_tokens=20), 0, ("r", 0, (0,)), n=3)
    done = asyncio.run(made.generate(request))
    turns = [
        turn(prompt=prompt, tokens=each.tokens, episode=f"e{number}")
        for number, each in enumerate(done)
    ]
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    return done, learner.forward(join([turns])).logprobs.detach().cpu()


@pytest.mark.parametrize("name", leave_to_evidence(RULED, keep=["Gemma2"]))
def test_windows_capped_scores_and_sinks_on_the_gpu_are_those_on_the_cpu(name, tmp_path, recording):
    make(tmp_path, "ruled", name)
    prompt = np.arange(40, 60, dtype=np.int32)
    expected, trained = sampled_and_trained(tmp_path, prompt, torch.device("cpu"))
    with pretend_gpu() as gpu:
        found, trained_there = sampled_and_trained(tmp_path, prompt, gpu)
        assert not flex_proof.unfit("training", gpu)
        assert not flex_proof.unfit("decoding", gpu)
    assert Replayed.replays > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert torch.allclose(trained_there, trained, atol=1e-4)


@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=KINDS))
def test_a_run_on_the_gpu_learns_what_one_on_the_cpu_learns(
    name, model_folder, tmp_path, monkeypatch, recording
):
    config = crew_config(model_folder, **algorithm_cases(model_folder)[name])
    config["engine"] = {**config.get("engine", {}), "cache_gb": 0.01}
    config["trainer"] = {**config["trainer"], "steps": 2}
    config["evaluation"] = {"tasks": 0}
    config["rollout"] = {**config["rollout"], "groups": 2, "group_size": 2}
    config["learner"] = {"device": "cpu"}
    expected = learnt(config, tmp_path / "cpu")
    monkeypatch.setattr(Trainer, "_save", lambda trainer: None)  # what pretends has no bytes
    config["learner"] = {"device": "cuda"}
    with pretend_gpu() as gpu:
        found = learnt(config, tmp_path / "gpu")
        assert not flex_proof.unfit("training", gpu)
        assert not flex_proof.unfit("decoding", gpu)
    assert found.keys() == expected.keys()
    assert Replayed.replays > 0
    for name, change in expected.items():
        # Adam turns a gradient of nearly 0, whose sign is rounding's, into a whole step.
        assert (found[name] - change).norm() <= 0.05 * change.norm(), name


def test_past_weights_lie_in_the_computers_memory(model_folder, tmp_path):
    """Also those of a resumed run; eight copies on the device would leave no room to train."""
    config = crew_config(model_folder, **algorithm_cases(model_folder)["earlier opponents"])
    config["learner"] = {"device": "cuda"}
    with pretend_gpu():
        made = trainer_of(config, tmp_path / "run", Display())
        [pool] = made.run.opponent_pools.values()
        pool.after_step(1)
        (tmp_path / "past").mkdir()
        pool.save(tmp_path / "past")
        pool.load(tmp_path / "past")
        kinds = {tensor.device.type for _, kept in pool.pool for tensor in kept.values()}
    assert len(pool.pool) == 2
    assert kinds == {"cpu"}


@pytest.mark.parametrize(
    "fault", leave_to_evidence(["an error", "other logits"], keep=["other logits"])
)
def test_steps_that_do_not_replay_what_they_compute_are_computed_anew(
    model_folder, tmp_path, monkeypatch, recording, caplog, fault
):
    """The run goes on, learns the same, and says so once."""
    monkeypatch.setattr(Trainer, "_save", lambda trainer: None)
    config = crew_config(model_folder, algorithm="grpo")
    config["engine"] = {"cache_gb": 0.01, "free_on_update": True}
    config["trainer"] = {**config["trainer"], "steps": 1}
    config["evaluation"] = {"tasks": 0}
    config["rollout"] = {**config["rollout"], "groups": 1, "group_size": 2}
    config["learner"] = {"device": "cuda"}

    def faulty(step, pool):
        if fault == "an error":
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        record(step, pool)
        step.graph = Other(step)

    class Other(Replayed):
        def replay(self) -> None:
            super().replay()
            self.step.logits += 1.0

    with pretend_gpu():
        sound = learnt(config, tmp_path / "sound")
        assert Replayed.replays > 0
        Replayed.replays = 0
        monkeypatch.setattr(cuda_graphs._Step, "record", faulty)
        found = learnt(config, tmp_path / "faulty")
    assert Replayed.replays <= 2  # one try of each policy's engine
    for name, change in sound.items():
        assert (found[name] - change).norm() <= 0.05 * change.norm(), name
    told = [record.getMessage() for record in caplog.records if "anew" in record.getMessage()]
    assert len(told) == 2  # policies
    why = "not permitted when stream is capturing" if fault == "an error" else "differ by"
    assert all(why in line and "\n" not in line for line in told)


def not_compiled(*_: Any, **__: Any) -> Any:
    raise torch._dynamo.exc.BackendCompilerFailed(
        "inductor", RuntimeError("Cannot find a working triton installation.\nMore."), None
    )


def another_answer(query: Tensor, *given: Any, **options: Any) -> Any:
    """As of a kernel that leaves the first token of a block out."""
    out = attend_by_mask(query, *given, **options)
    return torch.cat([out[:, :, :1] * 1.1, out[:, :, 1:]], 2)


def wrong_gradients(query: Tensor, *given: Any, **options: Any) -> Any:
    """The same numbers, whose gradients are twice as large."""
    out = attend_by_mask(query, *given, **options)
    return 2 * out - out.detach()


def told(caplog) -> list[str]:
    lines = [r.getMessage() for r in caplog.records if r.name == "rolecall.notices"]
    return [line for line in lines if "FlexAttention" in line]


@pytest.mark.parametrize(
    ("broken", "uses", "why"),
    [
        (not_compiled, ["decoding", "training"], "Cannot find a working triton installation"),
        pytest.param(
            another_answer, ["decoding", "training"], "differs by", marks=pytest.mark.evidence
        ),
        pytest.param(wrong_gradients, ["training"], "differs by 1 of", marks=pytest.mark.evidence),
    ],
)
def test_a_run_goes_on_without_flex_attention_where_it_does_not_hold(
    model_folder, tmp_path, monkeypatch, recording, replace_kernels, caplog, broken, uses, why
):
    """It learns what it learns with it, and one line for each use says so."""
    monkeypatch.setattr(Trainer, "_save", lambda trainer: None)
    config = crew_config(model_folder, algorithm="grpo")
    config["engine"] = {"cache_gb": 0.01}
    config["trainer"] = {**config["trainer"], "steps": 1}
    config["evaluation"] = {"tasks": 0}
    config["rollout"] = {**config["rollout"], "groups": 1, "group_size": 2}
    config["learner"] = {"device": "cuda"}
    with pretend_gpu() as gpu:
        sound = learnt(config, tmp_path / "sound")
        assert not told(caplog), "it holds"
        assert flex_proof.was_tried("training", gpu)
        assert flex_proof.was_tried("decoding", gpu)
        replace_kernels(broken, broken)
        Replayed.replays = 0
        found = learnt(config, tmp_path / "broken")
        assert not flex_proof.unfit("training", torch.device("cpu"))
    assert Replayed.replays > 0, "steps without it are recorded too"
    for name, change in sound.items():
        assert (found[name] - change).norm() <= 0.05 * change.norm(), name
    lines = sorted(told(caplog), key=lambda line: uses.index(line.split(" for ")[1].split(",")[0]))
    assert len(lines) == len(uses)
    assert all(why in line and "\n" not in line for line in lines)


@pytest.mark.parametrize("name", leave_to_evidence(RULED[1:], keep=[]))
def test_windows_capped_scores_and_sinks_without_flex_attention_are_those_with_it(
    name, tmp_path, monkeypatch, recording, replace_kernels
):
    make(tmp_path, "ruled", name)
    prompt = np.arange(40, 60, dtype=np.int32)
    with pretend_gpu() as gpu:
        sound, trained = sampled_and_trained(tmp_path, prompt, gpu)
        assert not flex_proof.unfit("training", gpu)
        assert not flex_proof.unfit("decoding", gpu)
        replace_kernels(not_compiled, not_compiled)
        found, without = sampled_and_trained(tmp_path, prompt, gpu)
        assert flex_proof.unfit("training", gpu)
        assert flex_proof.unfit("decoding", gpu)
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in sound]
    for ours, theirs in zip(found, sound, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert torch.allclose(without, trained, atol=1e-4)


def test_what_is_tried_out_is_no_part_of_a_layer_that_is_computed_again(recording):
    batch = join([[turn(prompt=[7] * 40, tokens=[5] * 9)]])
    layout = flex.Flex(batch.parent, batch.positions, device=torch.device("cpu"))
    layout.compiled = True
    query, key, value = (torch.randn(heads, 49, 16, requires_grad=True) for heads in (4, 2, 2))

    def attended(query: Tensor) -> Tensor:
        return layout.attend(0, query, key, value, scale=0.3)

    found = checkpoint(attended, query, use_reentrant=False)
    [ours] = torch.autograd.grad(found.square().sum(), query)
    [theirs] = torch.autograd.grad(attended(query).square().sum(), query)
    assert torch.allclose(ours, theirs)
    assert not flex_proof.unfit("training", torch.device("cpu"))


@pytest.mark.parametrize("holds", leave_to_evidence([True, False], keep=[False]))
def test_the_doctor_says_whether_flex_attention_holds(
    monkeypatch, recording, replace_kernels, holds
):
    if not holds:
        replace_kernels(wrong_gradients, wrong_gradients)
    with pretend_gpu() as gpu:
        found = asyncio.run(machine_check._tried(gpu))
    assert found["agrees"]
    assert found["paths"] == {
        "recorded steps": True,
        "FlexAttention in decoding": True,
        "FlexAttention in training": holds,
    }


def test_what_fails_later_at_another_length_is_computed_without_it(
    monkeypatch, recording, replace_kernels, caplog
):
    """A kernel is compiled for each length; where the device has no memory, that is said."""

    def fails_at(size: int, error: type[Exception]) -> Callable[..., Tensor]:
        def kernel(query: Tensor, *given: Any, **options: Any) -> Tensor:
            if query.shape[2] >= size:
                raise error("out of resources")
            return attend_by_mask(query, *given, **options)

        return kernel

    batch = join([[turn(prompt=[7] * 799, tokens=[5])]])
    with pretend_gpu() as gpu:
        query, key, value = (torch.randn(heads, 800, 16).to(gpu) for heads in (4, 2, 2))

        def attended() -> Tensor:
            layout = flex.Flex(batch.parent, batch.positions, device=gpu)
            return layout.attend(0, query, key, value, scale=0.3).cpu()

        expected = attended()
        replace_kernels(fails_at(700, torch.OutOfMemoryError), None)
        with pytest.raises(torch.OutOfMemoryError):
            attended()
        assert not told(caplog)
        replace_kernels(fails_at(700, RuntimeError), None)
        for _ in range(2):
            assert torch.allclose(attended(), expected, atol=1e-5)
        assert flex_proof.was_tried("training", gpu)
    assert len(told(caplog)) == 1


@pytest.mark.parametrize(
    "dtype",
    leave_to_evidence(["float32", "bfloat16"], keep=[]),
)
def test_what_an_update_alone_needs_rests_in_the_computers_memory(
    dtype, model_folder, tmp_path, monkeypatch, recording
):
    """Moments, masters and the reference; and the run learns what it learns without."""
    monkeypatch.setattr(Trainer, "_save", lambda trainer: None)
    config = crew_config(model_folder, **algorithm_cases(model_folder)["grpo with kl"])
    config["engine"] = {"cache_gb": 0.01}
    config["trainer"] = {**config["trainer"], "steps": 2}
    config["evaluation"] = {"tasks": 0}
    config["rollout"] = {**config["rollout"], "groups": 1, "group_size": 2}
    where: dict[bool, set[str]] = {}
    learned = {}
    for offload in (False, True):
        config["learner"] = {"device": "cuda", "offload": offload, "dtype": dtype}
        with pretend_gpu():
            trainer = trainer_of(config, tmp_path / f"run-{offload}", Display())
            asyncio.run(trainer.train())
            resting = [
                tensor
                for learner in trainer.run.learners.values()
                for state in learner.stepper.optimizer.state.values()
                for tensor in state.values()
                if tensor.ndim
            ]
            for learner in trainer.run.learners.values():
                resting += [master for _, master in learner.stepper._cast()]
                resting += learner.reference.model.parameters()
            where[offload] = {tensor.device.type for tensor in resting}
            assert len(resting) > 10
            learned[offload] = weights(trainer)
    assert where == {False: {"cuda"}, True: {"cpu"}}
    for name, tensor in learned[False].items():
        assert torch.equal(tensor, learned[True][name]), name


@pytest.mark.parametrize("free", leave_to_evidence([False, True], keep=[False]))
def test_steps_are_recorded_once_in_a_run_unless_its_updates_need_the_memory(
    model_folder, tmp_path, monkeypatch, recording, free
):
    made = []

    def noted(step, pool):
        made.append((step.cache, len(step.tokens)))
        record(step, pool)

    monkeypatch.setattr(cuda_graphs._Step, "record", noted)
    monkeypatch.setattr(Trainer, "_save", lambda trainer: None)
    config = crew_config(model_folder, algorithm="grpo")
    config["engine"] = {"cache_gb": 0.01, "free_on_update": free}
    config["trainer"] = {**config["trainer"], "steps": 2}
    config["evaluation"] = {"tasks": 0}
    config["rollout"] = {**config["rollout"], "groups": 1, "group_size": 2}
    config["learner"] = {"device": "cuda"}
    with pretend_gpu():
        trainer = trainer_of(config, tmp_path / "run", Display())
        asyncio.run(trainer.train())
    assert len({id(cache) for cache, _ in made}) == (2 if not free else 4)  # of two models
    assert len(made) == len({(id(cache), rows) for cache, rows in made})
