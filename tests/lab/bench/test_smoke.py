"""Every side of every benchmark at its smoke size, the workloads, and the command."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall_lab.bench import Benchmark, run
from rolecall_lab.bench.all import BENCHMARKS
from rolecall_lab.bench.child import set_up
from rolecall_lab.bench.gguf_models import write_gguf
from rolecall_lab.bench.pairs import run_pairs
from rolecall_lab.bench.records import check_same_work
from rolecall_lab.bench.run import NEEDS
from rolecall_lab.bench.small_models import random_model, vocabulary
from rolecall_lab.bench.workload import TeamSize, lengths, talks
from tests.support.small_model import skip_without_small_model
from tests.toy import command

pytestmark = [pytest.mark.slow, pytest.mark.evidence]

OPENVINO_THREADS = "2"  # with one it divides by zero in bfloat16, which ends the process (2026.4.1)
OWN_PROCESS = ("vllm", "trl")  # they change the process that they run in
SIDES = [
    # What measures memory starts a process for each time.
    pytest.param(name, peer, marks=[pytest.mark.alone] if name.endswith("memory") else [])
    for name, benchmark in BENCHMARKS.items()
    for peer in ["ours", *benchmark.peers]
    if peer not in OWN_PROCESS
]
GUESTS = [("team-rollout-s", "vllm"), ("grpo-step", "trl"), ("real-math-to-score", "trl")]


def skip_what_is_missing(name, side):
    if side in NEEDS and importlib.util.find_spec(NEEDS[side]) is None:
        pytest.skip(f"{side} is not installed (`make bench` installs it)")
    if name.startswith("real-"):
        skip_without_small_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(("name", "side"), SIDES)
def test_a_side_measures_itself_again_and_again(name, side, folder, monkeypatch):
    skip_what_is_missing(name, side)
    if side == "openvino":
        monkeypatch.setenv("OMP_NUM_THREADS", OPENVINO_THREADS)
    measure = set_up(name, side, size="smoke", folder=folder)
    first, second = measure(0), measure(1)
    assert first.value > 0
    assert second.value > 0
    assert first.facts.keys() == second.facts.keys()


@pytest.mark.alone
@pytest.mark.parametrize(("name", "peer"), GUESTS)
def test_a_peer_in_a_process_of_its_own_does_the_same_work(name, peer, folder):
    skip_what_is_missing(name, peer)
    pairs = run_pairs(BENCHMARKS[name], peer, number=1, smoke=True, folder=folder)
    assert len(pairs) == 1


def test_both_updates_have_one_loss_and_one_gradient(folder):
    ours, theirs = (
        set_up("update", side, size="smoke", folder=folder)(0) for side in ("ours", "padded")
    )
    assert {"loss", "gradient norm"} == set(ours.facts)
    assert abs(ours.facts["loss"]) > 1e-3
    check_same_work(ours, theirs)


def test_lengths_are_drawn_once_and_ids_for_every_run():
    size = TeamSize("s", tasks=32, samples=8)
    turns = lengths(size.episodes)
    assert turns == lengths(size.episodes)
    assert sum(len(one) == 3 for one in turns) == size.episodes // 2
    assert all(8 <= one[0] <= 128 and 8 <= one[1] <= 64 for one in turns)
    assert 45 < np.mean([one[0] for one in turns]) < 70
    first, second = (next(talks(size, run)[0])[0] for run in (1, 2))
    again = next(talks(size, 1)[0])[0]
    assert len(first) == 120
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_a_talk_repeats_all_that_was_said():
    [talk] = talks(TeamSize("s", tasks=1, samples=1), 0)
    prompt, length = next(talk)
    said = np.arange(length, dtype=np.int32)
    following, _ = talk.send(said)
    assert np.array_equal(following[:120], prompt)
    assert np.array_equal(following[120 : 120 + length], said)
    assert len(following) == 120 + length + 40


def test_llama_cpp_has_the_logits_of_the_same_model_after_a_shared_prompt(folder):
    skip_what_is_missing("", "llama.cpp")
    from rolecall_lab.bench.llama_cpp_rollout import LlamaCpp, Sequence

    path = random_model(folder, "s")
    prompt = np.arange(20, 60, dtype=np.int32)
    [talk] = talks(TeamSize("s", tasks=1, samples=1), 0)
    first, other = (Sequence(number, talk, prompt, length=1) for number in range(2))
    decoder = LlamaCpp(write_gguf(path, "float32"), sequences=2, vocabulary=vocabulary("s"))
    decoder.read([(first, prompt.tolist())], asks=False)
    decoder.share(first, other)
    answers = [[7], [5, 6, 7]]
    logits = decoder.read(list(zip((first, other), answers, strict=True)), asks=True)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    for row, answer in zip(logits, answers, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([[*prompt.tolist(), *answer]])).logits[0, -1]
        # Some of its float32 products are of rounded numbers; the logits' own deviation is 0.25.
        np.testing.assert_allclose(row, expected[: len(row)].numpy(), atol=5e-3)
    decoder.close()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_openvino_has_the_log_probs_of_the_same_model_after_a_cached_prompt(
    dtype, tolerance, folder, monkeypatch
):
    skip_what_is_missing("", "openvino")
    monkeypatch.setenv("OMP_NUM_THREADS", OPENVINO_THREADS)
    from openvino import Tensor

    from rolecall_lab.bench.openvino_models import write_openvino
    from rolecall_lab.bench.openvino_rollout import load, sampling

    path = random_model(folder, "xs")
    size = TeamSize("xs", tasks=1, samples=2, dtype=dtype, trains=True)
    pipeline = load(write_openvino(path, dtype), dtype)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    prompt = list(range(20, 120))
    ranks = []
    for turn, ending in enumerate(([7], [5, 6, 7])):
        whole = [*prompt, *ending]
        config = sampling(size, 40, seed=turn)
        config.do_sample = turn > 0  # the first turn is greedy
        handle = pipeline.add_request(turn, Tensor(np.array([whole])), config)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        [output] = handle.read_all()
        ids = torch.tensor(output.generated_ids)
        with torch.no_grad():
            logits = model(torch.tensor([[*whole, *output.generated_ids]])).logits[0].float()
        logprobs = logits[len(whole) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, ids[:, None])[:, 0]
        np.testing.assert_allclose(output.generated_log_probs, expected, atol=tolerance)
        ranks.append((logprobs > expected[:, None]).sum(1))
    if dtype == "float32":
        assert ranks[0].max() == 0
    assert ranks[1].max() > 100, "some tokens are never drawn"


@pytest.mark.alone
def test_the_command_writes_records_and_a_header_and_names_a_side_that_dies(
    tmp_path, capsys, monkeypatch
):
    """Children know no benchmark called broken; a peer that is not installed is left out."""
    whole = BENCHMARKS["update"]
    broken = Benchmark(
        "broken", whole.unit, whole.work, whole.full, whole.smoke, whole.ours, whole.peers
    )
    alone = replace(BENCHMARKS["grpo-step"], peers={"absent": "no:side"})
    known = {"broken": broken, "update": whole, "grpo-step": alone}
    monkeypatch.setattr(run, "BENCHMARKS", known)
    monkeypatch.setitem(NEEDS, "absent", "no_such_module")
    file = tmp_path / "found.json"
    assert command("bench", "--smoke", "--pairs", 2, "--json", file) == 1
    found = json.loads(file.read_text())
    one, other = found["records"]
    assert (other["name"], other["peer"], other["ratio"]) == ("grpo-step", "none", None)
    assert set(one) == {"name", "peer", "unit", "ours", "theirs", "ratio", "pairs"}
    assert (one["name"], one["peer"], one["pairs"]) == ("update", "padded", 2)
    assert one["ratio"]["min"] <= one["ratio"]["median"] <= one["ratio"]["max"]
    assert found["header"]["smoke"] is True
    assert found["header"]["failed"] == [
        "broken against padded: broken (ours) stopped: KeyError: 'broken'"
    ]
    printed = capsys.readouterr().out
    assert found["header"]["missing"] == ["absent"]
    assert "absent is not installed" in printed
    assert "FAILED broken" in printed
    assert "over 2 pairs" in printed


def test_only_the_named_peers_are_run_beside():
    names = ["team-rollout-s", "update", "team-rollout-s-unordered"]
    [found] = run._chosen(names, peers=["vllm"])
    assert (found.name, list(found.peers)) == ("team-rollout-s", ["vllm"])
    assert [list(one.peers) for one in run._chosen(names)] == [
        list(BENCHMARKS["team-rollout-s"].peers), [], ["padded"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["walk"], ["update", "--pairs", 0], ["update", "--peer", "nobody"]]
)
def test_bad_arguments_are_one_line(arguments, capsys):
    assert command("bench", *arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
