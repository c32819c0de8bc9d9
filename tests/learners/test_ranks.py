"""Learners on several ranks do what one process does, and end together."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.ppo import Ppo
from rolecall.config.load import load
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.learner import DivergedError, Learner
from rolecall.core.seeding import derive_seed
from rolecall.learners import logprobs
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.learners.ranks.dealing import deal
from rolecall.learners.ranks.group import RankError, RankGroup
from rolecall.learners.ranks.learner import RankedLearner
from rolecall.learners.ranks.spec import LearnerSpec
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.models.skeleton import fill_buffers, make_skeleton
from rolecall.runs.api import train
from rolecall.setup.plan import validate
from rolecall.setup.ranks import Ranks
from rolecall.storage import checkpoint
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.conftest import make_model
from tests.learners.test_packing import turns_of
from tests.support.evidence import leave_to_evidence
from tests.toy import (
    CPU,
    LIKE_GRPO,
    algorithm_cases,
    alike,
    crew_config,
    language_model,
    relay_config,
    write,
)

pytestmark = pytest.mark.slow
KINDS = ["replicated", "fsdp"]
# In the others only credit differs from grpo's, and that is given before ranks see a batch.
NAMES = [name for name in algorithm_cases(Path("x")) if name not in LIKE_GRPO]
names = (f"learner-{number}" for number in count())


@pytest.fixture(scope="module")
def ranks():
    """Groups of so many ranks, which live until the last test; a dead one is started again."""
    groups: dict[int, RankGroup] = {}

    def of(size: int) -> RankGroup:
        if size not in groups or groups[size]._gone:
            groups[size] = RankGroup(size)
            groups[size].use("the tests")
        return groups[size]

    yield of
    for group in groups.values():
        group.close()


# With a small eps the first step of AdamW is the sign of a gradient: where that is mostly rounding,
# of rounding.
ADAM = Optimizer(lr=1e-3, eps=1e-4)


def spec_of(folder: Path, kind: str, **changes) -> LearnerSpec:
    spec = LearnerSpec(
        kind=kind, base=str(folder), adapter=None, seed=0, optimizer=ADAM,
        total_updates=10, reference=None, head=None, heads=1, dtype="float32",
    )  # fmt: skip
    return replace(spec, **changes)


def ranked(group: RankGroup, spec: LearnerSpec) -> RankedLearner:
    return RankedLearner(group, next(names), spec)


def local(folder: Path, **options) -> LocalLearner:
    optimizer = ADAM.model_copy(update=options)
    return LocalLearner(language_model(folder), optimizer, total_updates=10)


def weights_of(learner: Learner, folder: Path) -> dict[str, torch.Tensor]:
    folder.mkdir(parents=True)
    asyncio.run(learner.write_weights(folder))
    [file] = folder.glob("*.safetensors")
    return load_file(file)


def assert_same_weights(one: Learner, other: Learner, folder: Path) -> None:
    found, wanted = (weights_of(each, folder / str(n)) for n, each in enumerate((one, other)))
    assert found.keys() == wanted.keys()
    flat = [torch.cat([w[name].flatten() for name in sorted(w)]) for w in (found, wanted)]
    assert alike(*flat)


def assert_same_updates(found, wanted) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
        assert one.agent_grad_norms == pytest.approx(other.agent_grad_norms, rel=1e-4)
        assert (one.lr, one.skipped) == (other.lr, other.skipped)
        assert one.agent_metrics.keys() == other.agent_metrics.keys()
        for agent, metrics in one.agent_metrics.items():
            wanted_metrics = other.agent_metrics[agent]
            assert metrics.keys() == wanted_metrics.keys()
            for name in metrics.keys() - {"pair_accuracy"}:  # which way equal numbers are rounded
                assert metrics[name] == pytest.approx(wanted_metrics[name], rel=1e-4, abs=1e-5)


def update(learner: Learner, batches, *, algorithm=None, per_agent: bool = True):
    [done] = asyncio.run(learner.update([batches], algorithm or DrMas(), per_agent=per_agent))
    return done


class Beside:
    """A learner of this process that compares all that it says with what ranks say of it."""

    def __init__(self, inner: LocalLearner, others: list[RankedLearner]) -> None:
        self.inner, self.others = inner, others

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def annotate(self, turns, what, *, budget):
        wanted = await self.inner.annotate(turns, what, budget=budget)
        for other in self.others:
            found = await other.annotate(turns, what, budget=budget)
            for turn in turns:
                assert found[turn.id].keys() == wanted[turn.id].keys()
                for name, numbers in wanted[turn.id].items():
                    assert np.allclose(found[turn.id][name], numbers, rtol=1e-5, atol=1e-5)
        return wanted

    async def update(self, steps, algorithm, *, per_agent):
        wanted = await self.inner.update(steps, algorithm, per_agent=per_agent)
        for other in self.others:
            found = await other.update(steps, algorithm, per_agent=per_agent)
            assert_same_updates(found, wanted)
            assert (other.version, other.num_steps) == (self.inner.version, self.inner.num_steps)
        return wanted

    async def probe(self, tokens):
        return await self.inner.probe(tokens)

    def save(self, folder):
        self.inner.save(folder)

    def load(self, folder):
        self.inner.load(folder)


# Adapters; heads and a reference; a loss of pairs.
@pytest.mark.parametrize("name", leave_to_evidence(NAMES, keep=["dpo"]))
def test_two_ranks_equal_one_for_every_kind_of_update(name, ranks, model_folder, tmp_path):
    """A step of a whole run: annotations, norms, metrics and the weights that come of it."""
    steps = 2 if name in ("vdn", "qmix") else 1  # their critics know nothing at first
    settings = {"evaluation": {"tasks": 0}, "trainer": {"steps": steps}}
    config = crew_config(model_folder, **settings, **algorithm_cases(model_folder)[name])
    for policy in config["policies"].values():  # so that steps depend smoothly on gradients
        policy.setdefault("optimizer", {})["eps"] = 1e-4
    trainer = trainer_of(config, tmp_path / "run", Display())
    run, inner = trainer.run, trainer.run.learners["a"]
    section, algorithm = run.config.policies["a"], run.get_step_algorithm("a")
    spec = spec_of(
        model_folder, "replicated", adapter=section.adapter, optimizer=section.optimizer,
        seed=derive_seed(run.config.trainer.seed, "adapters") % 2**31,
        total_updates=steps * algorithm.epochs * algorithm.minibatches,
        reference=section.reference,
        head=run.config.critics["agent"].optimizer if algorithm.critic == "agent" else None,
    )  # fmt: skip
    others = [ranked(ranks(2), replace(spec, kind=kind)) for kind in KINDS]
    before = {name: weight.clone() for name, weight in inner.model.weights().items()}
    run.learners["a"] = Beside(inner, others)
    asyncio.run(trainer.train())
    trainer.folder.release()
    assert inner.num_steps > 0
    assert not all(torch.equal(before[name], now) for name, now in inner.model.weights().items())
    for other in others:
        assert_same_weights(other, inner, tmp_path / other.name)
        asyncio.run(other.close())


def batches_of(sizes: list[int]):
    """Batches of one turn of one agent each, with prompts of so many tokens."""
    turns = turns_of(len(sizes), agents=("solver",))
    for turn, size in zip(turns, sizes, strict=True):
        turn.prompt = np.arange(size, dtype=np.int32) % 200
    return [pack([turn], budget=10_000)[0] for turn in turns]


class Chunked(DrMas):
    """Whoever unpacks it computes logits a few rows at a time, or all at once again."""

    rows: int = 2**18

    def __setstate__(self, state):
        super().__setstate__(state)
        logprobs.LARGEST_LOGITS = self.rows * 2**8


class ChunkedPpo(Ppo):
    """The same with a value head."""

    rows: int = 2**18

    def __setstate__(self, state):
        super().__setstate__(state)
        logprobs.LARGEST_LOGITS = self.rows * 2**8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "sizes", "counts"),
    [(2, [150, 20, 20, 20], [1, 3]), (2, [20], [0, 1]),
     pytest.param(3, [20], [0, 0, 1], marks=pytest.mark.alone)],
)  # fmt: skip
def test_ranks_may_have_different_numbers_of_batches_or_none(
    kind, size, sizes, counts, ranks, model_folder, tmp_path, caplog
):
    """Those without any compute with the others, and none waits for ever; a warning says so."""
    batches, [turn] = batches_of(sizes), turns_of(1)
    assert sorted(map(len, deal(batches, size, evenly=False))) == counts
    one, other = ranked(ranks(size), spec_of(model_folder, kind)), local(model_folder)
    for _ in range(2):
        assert_same_updates([update(one, batches)], [update(other, batches)])
    assert_same_weights(one, other, tmp_path)
    noted = [
        asyncio.run(each.annotate([turn], {"prox_logprobs"}, budget=60))[turn.id]["prox_logprobs"]
        for each in (one, other)
    ]
    assert np.allclose(*noted, atol=1e-5)
    told = [record.getMessage() for record in caplog.records if "are idle" in record.getMessage()]
    assert len(told) == (len(sizes) < size)


@pytest.mark.parametrize("head", [None, Optimizer(lr=1e-2)])
@pytest.mark.parametrize("rows", leave_to_evidence([2**18, 1], keep=[1]))
def test_ranks_that_share_a_row_equal_one_process(head, rows, ranks, model_folder, tmp_path):
    """Prefix trees, whose tokens lie on both ranks, and a row that only one of them predicts in."""
    turns = turns_of(10, agents=("solver", "verifier"))
    long = batches_of([101])[0]
    spec = spec_of(model_folder, "fsdp", head=head, context_parallel=2, reference="initial")
    one = ranked(ranks(2), spec)
    model = language_model(model_folder)
    other = LocalLearner(
        model, spec.optimizer, total_updates=10, head=head, reference=model.frozen_copy()
    )
    algorithm = Chunked(rows=rows, entropy=0.01) if head is None else ChunkedPpo(rows=rows)
    if head is not None:
        for turn in turns:
            turn.training.values = turn.returns = np.ones(len(turn.tokens), dtype=np.float32)
        long.values = long.mask.copy()
    for per_agent in (True, False):
        batches = [*pack(turns, budget=400, by_agent=per_agent), *([] if per_agent else [long])]
        found = update(one, batches, algorithm=algorithm, per_agent=per_agent)
        assert_same_updates(
            [found], [update(other, batches, algorithm=algorithm, per_agent=per_agent)]
        )
    what = {"prox_logprobs", "ref_logprobs"} | (set() if head is None else {"values"})
    noted = [asyncio.run(each.annotate(turns, what, budget=100)) for each in (one, other)]
    for turn in turns:
        for name in what:
            assert np.allclose(noted[0][turn.id][name], noted[1][turn.id][name], atol=1e-5)
    assert_same_weights(one, other, tmp_path)
    update(one, batches, algorithm=Chunked())


def test_batches_are_dealt_by_tokens_and_evenly_where_ranks_wait_for_one_another():
    batches = batches_of([9, 5, 4, 3, 2])
    tokens = [len(batch.tokens) for batch in batches]
    freely = [sum(len(b.tokens) for b in mine) for mine in deal(batches, 2, evenly=False)]
    assert max(freely) - min(freely) <= min(tokens)
    evenly = deal(batches, 2, evenly=True)
    assert [len(mine) for mine in evenly] == [3, 3]
    assert sum(batch.turn_ids == ["idle"] for mine in evenly for batch in mine) == 1


@pytest.fixture(scope="module")
def tied_folder(tmp_path_factory):
    folder = make_model(tmp_path_factory.mktemp("tied"), "qwen3")
    model = AutoModelForCausalLM.from_pretrained(folder, tie_word_embeddings=True)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", leave_to_evidence([2**18, 1], keep=[1]))
def test_a_tied_head_and_one_in_chunks_equal_one_process(
    kind, rows, ranks, tied_folder, tmp_path, monkeypatch
):
    """Several tokens' logits are at most as many as the constant, which is per process."""
    batches = pack(turns_of(10, agents=("solver", "verifier")), budget=60)
    spec = spec_of(tied_folder, kind)
    one, other = ranked(ranks(2), spec), local(tied_folder)
    assert other.model.head(torch.zeros(1, 32)).shape[1] > 2**8
    wanted = update(other, batches)
    found = update(one, batches, algorithm=Chunked(rows=rows))
    asyncio.run(one.update([], Chunked(), per_agent=False))
    assert_same_updates([found], [wanted])
    assert_same_weights(one, other, tmp_path)
    update(one, batches, algorithm=Chunked())  # all at once again


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_is_clipped_by_the_norm_over_all_ranks(kind, ranks, model_folder, tmp_path):
    batches = pack(turns_of(10, agents=("solver", "verifier")), budget=60)
    optimizer = Optimizer(lr=1e-3, clip=1e-4, eps=1.0)  # so that steps are as long as gradients
    one = ranked(ranks(2), spec_of(model_folder, kind, optimizer=optimizer))
    other = LocalLearner(language_model(model_folder), optimizer, total_updates=10)
    before = weights_of(other, tmp_path / "before")
    found, wanted = update(one, batches), update(other, batches)
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-4)  # not of a rank's shares
    assert found.grad_norm > 100 * optimizer.clip
    moved = [
        torch.cat([(now[name] - before[name]).flatten() for name in sorted(now)])
        for now in (weights_of(one, tmp_path / "one"), weights_of(other, tmp_path / "other"))
    ]
    assert float(moved[1].abs().max()) > 0
    assert float((moved[0] - moved[1]).abs().max()) <= 0.1 * float(moved[1].abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_breaks_one_rank_is_skipped_by_both_and_named(
    kind, ranks, model_folder, tmp_path
):
    batches = batches_of([60, 30])
    assert [mine[0] is batches[n] for n, mine in enumerate(deal(batches, 2, evenly=True))]
    batches[1].advantages[:] = np.nan
    learner = ranked(ranks(2), spec_of(model_folder, kind))
    before = weights_of(learner, tmp_path / "before")
    for _ in range(2):
        assert update(learner, batches).skipped == batches[1].turn_ids[0]
    assert (learner.version, learner.num_steps) == (0, 0)
    after = weights_of(learner, tmp_path / "after")
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(DivergedError, match=batches[1].turn_ids[0]):
        update(learner, batches)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_compute_again_give_the_same_gradient(kind, ranks, model_folder, tmp_path):
    batches = pack(turns_of(10, agents=("solver", "verifier")), budget=60)
    one = ranked(ranks(2), spec_of(model_folder, kind, checkpoint_activations=True, offloads=True))
    other = local(model_folder)
    for _ in range(2):
        asyncio.run(one.load_back())
        assert_same_updates([update(one, batches)], [update(other, batches)])
        asyncio.run(one.offload())
    assert_same_weights(one, other, tmp_path)


def test_sharded_bfloat16_has_float32_masters_that_small_steps_move(ranks, model_folder, tmp_path):
    """As in one process: what is computed is rounded, what is summed up is not."""
    batches = pack(turns_of(10, agents=("solver", "verifier")), budget=60)
    optimizer = Optimizer(lr=1e-5)
    one = ranked(ranks(2), spec_of(model_folder, "fsdp", optimizer=optimizer, dtype="bfloat16"))
    model = load_model(str(model_folder), device=CPU, dtype=torch.bfloat16)
    handle = LanguageModel(model, load_tokenizer(str(model_folder)))
    other = LocalLearner(handle, optimizer, total_updates=10)
    for _ in range(5):
        found, wanted = update(one, batches), update(other, batches)
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=0.02)
    tokens = np.arange(16, dtype=np.int32)
    apart = asyncio.run(one.probe(tokens)) - asyncio.run(other.probe(tokens))
    assert np.abs(apart).mean() < 0.02
    assert one.num_bytes == 2 * sum(p.numel() for p in other.parameters)
    written = weights_of(one, tmp_path / "written")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    one.save(tmp_path)
    masters = everything(tmp_path)
    for name, weight in written.items():
        assert masters[f"weight/{name}"].dtype == torch.float32
        assert torch.equal(masters[f"weight/{name}"].bfloat16(), weight)
    steps = [float((w - w.bfloat16().float()).abs().max()) for w in masters.values() if w.ndim > 1]
    assert max(steps) > 0, "nothing that bfloat16 cannot hold"


@pytest.mark.alone
def test_sharded_checkpoints_load_on_other_numbers_of_ranks(ranks, model_folder, tmp_path):
    """2 -> 1 -> 3: the same weights and moments, bit for bit, and training goes on alike."""
    head = Optimizer(lr=1e-2)
    spec = spec_of(model_folder, "fsdp", head=head)
    batches = pack(turns_of(10, agents=("solver", "verifier")), budget=60)
    first = ranked(ranks(2), spec)
    update(first, batches)
    update(first, batches)
    saved, learner = [tmp_path / "2"], first
    saved[0].mkdir()
    first.save(saved[0])
    for size in (1, 3):
        learner = ranked(ranks(size), spec)
        learner.load(saved[-1])
        assert (learner.version, learner.num_steps) == (2, 2)
        saved.append(tmp_path / str(size))
        saved[-1].mkdir()
        learner.save(saved[-1])
    states = [everything(folder) for folder in saved]
    assert any(key.startswith("exp_avg_sq/") for key in states[0])
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[key], states[0][key]) for key in state)
    assert_same_updates([update(learner, batches)], [update(first, batches)])
    with pytest.raises(ValueError, match="no checkpoint of a learner with the name fsdp"):
        learner.load(tmp_path)
    assert_same_updates([update(learner, batches)], [update(first, batches)])  # none has ended


def everything(folder: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of a sharded checkpoint, whole."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    whole = folder.with_suffix(".pt")
    dcp_to_torch_save(folder / "shards", whole)
    return torch.load(whole)


def test_replicated_checkpoints_are_those_of_one_process(ranks, model_folder, tmp_path):
    batches = pack(turns_of(10, agents=("solver", "verifier")), budget=60)
    one, other = ranked(ranks(2), spec_of(model_folder, "replicated")), local(model_folder)
    update(other, batches)
    other.save(tmp_path)
    one.load(tmp_path)
    assert_same_updates([update(one, batches)], [update(other, batches)])
    one.save(tmp_path)
    again = local(model_folder)
    again.load(tmp_path)
    assert (again.version, again.num_steps) == (2, 2)
    assert_same_weights(one, again, tmp_path / "weights")


@pytest.mark.parametrize("kind", KINDS)
def test_value_heads_of_another_stage_are_taken_over(kind, ranks, model_folder, tmp_path):
    """On every rank, without the moments, while steps count from 0."""
    head, turns = Optimizer(lr=1e-2), turns_of(10)
    for turn in turns:
        turn.training.values = turn.returns = np.ones(len(turn.tokens), dtype=np.float32)
    batches = pack(turns, budget=60)
    learner = ranked(ranks(2), spec_of(model_folder, kind, head=head))
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    update(learner, batches, algorithm=Ppo(epochs=1))
    learner.save(tmp_path / "before")
    again = ranked(ranks(2), spec_of(model_folder, kind, head=head))
    assert again.take_over_head(tmp_path / "before", moments=False)
    again.save(tmp_path / "after")
    one, other = (
        torch.load(tmp_path / name / "learner.pt", weights_only=True)
        for name in ("before", "after")
    )
    assert one["head"]["weight"].any()
    assert all(torch.equal(one["head"][name], other["head"][name]) for name in one["head"])
    assert other["head_stepper"]["num_steps"] == 0
    assert not other["head_stepper"]["optimizer"]["state"]
    assert not again.take_over_head(tmp_path, moments=False)


@pytest.mark.parametrize("adapted", [False, True])
def test_what_shards_export_is_read_by_from_pretrained(adapted, ranks, model_folder, tmp_path):
    adapter = Adapter(rank=4) if adapted else None
    learner = ranked(ranks(2), spec_of(model_folder, "fsdp", adapter=adapter))
    update(learner, pack(turns_of(10, agents=("solver",)), budget=60))
    learner.save(tmp_path)
    tokens = np.arange(16, dtype=np.int32)
    if adapted:
        model = load_model(str(model_folder), device=CPU, dtype=torch.float32)
        made = with_adapters(model, load_tokenizer(str(model_folder)), {"p": adapter}, seed=1)["p"]
        made.load(tmp_path)
        said = asyncio.run(LocalLearner(made, Optimizer(lr=1.0), total_updates=1).probe(tokens))
    else:
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        logits = model(torch.from_numpy(tokens).long()[None]).logits[0]
        said = logits.log_softmax(-1)[:-1].gather(-1, torch.from_numpy(tokens[1:, None]).long())
        said = said[:, 0].detach().numpy()
    assert np.allclose(asyncio.run(learner.probe(tokens)), said, atol=1e-5)
    before = asyncio.run(ranked(ranks(2), spec_of(model_folder, "fsdp")).probe(tokens))
    assert not np.allclose(said, before, atol=1e-5)


def test_a_skeleton_has_no_weights_and_the_numbers_that_no_file_holds(model_folder):
    """Two layers say how the model can be changed, and what its buffers are."""
    skeleton = make_skeleton(str(model_folder), device=CPU, dtype=torch.float32)
    assert skeleton is not None
    model = skeleton.loaded.model
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    whole = load_model(str(model_folder), device=CPU, dtype=torch.float32, fuses=False)
    assert skeleton.loaded.capabilities == whole.capabilities
    assert whole.capabilities.is_trimmed
    kinds = [[type(m).__name__ for m in each.modules()] for each in (model, whole.model)]
    assert kinds[0] == kinds[1]
    model.to_empty(device=CPU)
    fill_buffers(model, skeleton)
    buffers = dict(whole.model.named_buffers())
    assert buffers
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_a_base_whose_files_have_other_names_is_read_whole_and_then_sharded(
    ranks, tied_folder, tmp_path
):
    model = AutoModelForCausalLM.from_pretrained(tied_folder)
    model.model.save_pretrained(tmp_path)  # without its head: names begin with `layers`
    model.config.save_pretrained(tmp_path)
    load_tokenizer(str(tied_folder)).save_pretrained(tmp_path)
    assert make_skeleton(str(tmp_path), device=CPU, dtype=torch.float32) is None
    tokens = np.arange(16, dtype=np.int32)
    said = [
        asyncio.run(ranked(ranks(2), spec_of(folder, "fsdp")).probe(tokens))
        for folder in (tmp_path, tied_folder)
    ]
    assert np.allclose(*said, atol=1e-6)


class Raising(DrMas):
    """Cannot compute the loss of one turn."""

    turn: str = ""

    def loss(self, batch, outputs):
        if self.turn in batch.turn_ids:
            raise KeyError("nobody taught me this")
        return super().loss(batch, outputs)


def processes_of(group: RankGroup) -> list[int]:
    return [process.pid for process in group.processes]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_an_exception_on_one_rank_ends_all_and_is_told_in_one_line(ranks, model_folder):
    group = ranks(2)
    learner, batches = ranked(group, spec_of(model_folder, "fsdp")), batches_of([60, 30])
    pids = processes_of(group)
    with pytest.raises(RankError, match=r"rank 1 of 2 failed: KeyError.*its log ends") as error:
        update(learner, batches, algorithm=Raising(turn=batches[1].turn_ids[0]))
    assert "nobody taught me this" in str(error.value)
    assert "\n" not in str(error.value)
    assert not any(map(is_running, pids))
    with pytest.raises(RankError, match="rank 1 of 2 failed"):
        asyncio.run(learner.probe(np.arange(4, dtype=np.int32)))
    asyncio.run(learner.close())  # what has ended can be closed


class Killing(DrMas):
    """Ends the process that computes the loss of one turn, as the kernel does without memory."""

    turn: str = ""

    def loss(self, batch, outputs):
        if self.turn in batch.turn_ids:
            print("a last word", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(batch, outputs)


@pytest.mark.evidence  # this and the next two start ranks anew, which takes ten seconds
def test_a_rank_that_is_killed_ends_all_and_is_named_with_its_signal(ranks, model_folder):
    group = ranks(2)
    learner, batches = ranked(group, spec_of(model_folder, "replicated")), batches_of([60, 50])
    pids = processes_of(group)
    with pytest.raises(RankError, match=r"rank 1 of 2 ended \(SIGKILL\); .*a last word"):
        update(learner, batches, algorithm=Killing(turn=batches[1].turn_ids[0]))
    assert not any(map(is_running, pids))


@pytest.mark.evidence
def test_a_rank_that_is_lost_while_a_checkpoint_is_loaded_does_not_blame_the_checkpoint(
    ranks, model_folder, tmp_path
):
    group = ranks(2)
    learner = ranked(group, spec_of(model_folder, "fsdp"))
    folder = checkpoint.save(tmp_path, 1, {"p": learner}, states=[], keep=1)
    os.kill(processes_of(group)[1], signal.SIGKILL)
    with pytest.raises(RankError, match=r"rank 1 of 2 ended \(SIGKILL\)"):
        checkpoint.load(folder, {"p": learner})


@pytest.mark.evidence
def test_a_checkpoint_that_a_rank_cannot_read_is_blamed(ranks, model_folder, tmp_path):
    learner = ranked(ranks(1), spec_of(model_folder, "fsdp"))
    folder = checkpoint.save(tmp_path, 1, {"p": learner}, states=[], keep=1)
    (folder / "p/learner.pt").write_bytes(b"")
    with pytest.raises(
        checkpoint.CheckpointError, match=r"does not fit .* rank 0 of 1 failed: EOF"
    ):
        checkpoint.load(folder, {"p": learner})


DRIVER = "from rolecall.learners.ranks.group import RankGroup; RankGroup(2).call('drop', '')"


def children_of(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def test_ranks_end_with_a_trainer_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", DRIVER]) as driver:
        while len(pids := children_of(driver.pid)) < 2:
            assert driver.poll() is None
            time.sleep(0.02)
        time.sleep(1.0)  # they start for several seconds more
        assert all(map(is_running, pids))
        driver.kill()
    until = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(is_running, pids))


def test_ranks_that_do_not_start_in_time_are_ended():
    with pytest.raises(RankError, match=r"did not start within 0.05 s \(learner.start_timeout_s\)"):
        RankGroup(1, start_timeout_s=0.05).call("drop", "nothing")


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        ({"name": "fsdp", "ranks": 3, "context_parallel": 2},
         r"learner\.context_parallel: 2 does not divide the 3 ranks; write a number that does"),
        ({"name": "fsdp", "ranks": 3, "context_parallel": 3, "device": "cpu"},
         r"learner\.context_parallel: 3 ranks cannot share the 4 attention heads of"),
        ({"name": "replicated", "device": "cuda"}, r"learner\.device: this machine has no device"),
    ],
)  # fmt: skip
def test_ranks_that_cannot_be_are_told_before_weights_are_loaded(
    learner, message, model_folder, tmp_path
):
    if torch.cuda.is_available() and learner.get("device") == "cuda":
        pytest.skip("this machine has the device")
    config = relay_config(model_folder, learner=learner)
    with pytest.raises(ConfigError, match=message):
        Ranks(validate(load(write(tmp_path / "team.yaml", config))).config)


def test_a_mixer_that_reads_a_policys_model_cannot_have_it_on_ranks(model_folder, tmp_path):
    config = relay_config(
        model_folder, learner={"name": "replicated"}, **algorithm_cases(model_folder)["vdn"]
    )
    with pytest.raises(ConfigError, match=r"learner\.name: critics\.mixer reads the model of a"):
        validate(load(write(tmp_path / "team.yaml", config)))


@pytest.mark.alone
def test_policies_of_different_places_update_at_the_same_time(model_folder, tmp_path, monkeypatch):
    """Two ranks train one policy, and one rank the other; each finds the other at work."""
    whole, at_work, seen = RankedLearner.update, set(), []

    async def noted(learner, steps, algorithm, *, per_agent):
        at_work.add(learner.name)
        await asyncio.sleep(0.2)
        seen.append(set(at_work))
        done = await whole(learner, steps, algorithm, per_agent=per_agent)
        at_work.discard(learner.name)
        return done

    monkeypatch.setattr(RankedLearner, "update", noted)
    config = relay_config(
        model_folder, learner={"name": "replicated", "ranks": 1, "device": "cpu"},
        trainer={"steps": 1}, evaluation={"tasks": 0},
    )  # fmt: skip
    config["policies"]["b"]["learner"] = {"ranks": 2}
    trainer = trainer_of(config, tmp_path / "run", Display())
    try:
        asyncio.run(trainer.train())
    finally:
        asyncio.run(trainer.run.close())
    assert seen == [{"a", "b"}, {"a", "b"}]


@pytest.mark.alone
def test_a_maths_team_trains_on_two_sharded_ranks(tmp_path):
    """A whole run with its checkpoints, publications and evaluations, which leaves no process."""
    there = set(children_of(os.getpid()))  # as ranks of other tests
    summary = train(
        "math",
        learner={"name": "fsdp", "ranks": 2, "device": "cpu"},
        rollout={"groups": 2, "group_size": 4},
        trainer={"steps": 2, "save_every": 1},
        evaluation={"tasks": 1, "samples": 1},
        output=tmp_path / "run",
    )
    assert summary["steps"] == 2
    saved = tmp_path / "run/checkpoints/step-2/solver"
    assert {"model.safetensors", "shards", "learner.pt"} <= {path.name for path in saved.iterdir()}
    assert set(children_of(os.getpid())) <= there


@pytest.mark.alone
def test_torchrun_may_start_the_ranks(model_folder, tmp_path):
    """Its rank 0 is the trainer, which has a process for the learner's rank 0; rank 1 serves it."""
    config = relay_config(
        model_folder, learner={"name": "replicated", "ranks": 2, "device": "cpu"},
        trainer={"steps": 1}, evaluation={"tasks": 0},
    )  # fmt: skip
    file, output = write(tmp_path / "team.yaml", config), tmp_path / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", "rolecall", "train", file, "--output", output],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (output / "checkpoints/step-1/a/learner.pt").is_file()
    assert not (output / "checkpoints/step-1/a/shards").exists()
