"""vLLM in its own process samples, scores and takes weights as our own engine does.

Starting vLLM takes seconds, so two engines serve nearly all tests: one with all weights of a model
with tied embeddings, one with two adapters. The tests that end them stand last.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rolecall.config.schema import Adapter
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import Completion, ContextFullError, Request, Sampling
from rolecall.core.seeding import derive_seed
from rolecall.engines.vllm.engine import VllmEngine
from rolecall.models.attention.layouts import Rows
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.runtime.scratch import MEMORY
from tests.engines.test_sampling import kept
from tests.families import make
from tests.toy import CPU, language_model

if importlib.util.find_spec("vllm") is None:  # to import it takes seconds
    pytest.skip("vLLM is an extra: make .venv/vllm", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

MARKER = "ROLECALL_VLLM_TEST"
PROMPT = np.array([5, 6, 7, 8], dtype=np.int32)
LENGTH = 512  # most tokens of a row
CLOSE = 1e-4  # nats


def make_model(folder: Path, *, padding: int = 0) -> Path:
    """A tied model whose heads are of a size that vLLM has on a CPU; `padding` of its head."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    from rolecall_lab.tiny.tokenizer import fit

    torch.manual_seed(0)
    tokenizer = fit([], size=300, tags=("<verify>", "</verify>"))
    end = tokenizer.eos_token_id
    config = Qwen3Config(
        vocab_size=len(tokenizer) + padding, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, intermediate_size=64, max_position_embeddings=2048,
        initializer_range=0.2, eos_token_id=end, pad_token_id=end, bos_token_id=None,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.model.embed_tokens.weight.data[end] = 0.0  # rarely sampled: most turns go on to a limit
    model.generation_config = GenerationConfig(eos_token_id=end)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lose(file: Path, name: str) -> None:
    """Write the file again without one of its weights."""
    weights = load_file(file)
    del weights[name]
    save_file(weights, file)


def change(model: LanguageModel, *, seed: int, by: float) -> None:
    torch.manual_seed(seed)
    for _, parameter in model.named_parameters():
        parameter.data += by * torch.randn_like(parameter)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def changed(base, tmp_path_factory) -> Path:
    """The same model some updates later."""
    folder = tmp_path_factory.mktemp("changed")
    model = language_model(base)
    change(model, seed=1, by=0.1)
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def options(**changes) -> VllmEngineConfig:
    return VllmEngineConfig(eager=True, cache_gb=0.05, max_length=LENGTH, **changes)


def ended(marker: str, *, within_s: float = 10.0) -> bool:
    """Whether no process is left that inherited the marker from the driver."""
    until = time.monotonic() + within_s
    while found := marked(marker):
        if time.monotonic() > until:
            print(found)
            return False
        time.sleep(0.05)
    return True


def marked(marker: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inherited = f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes()
        except OSError:  # it has ended
            continue
        if inherited and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@contextmanager
def marking() -> Iterator[str]:
    """Processes that are started inside carry a marker."""
    os.environ[MARKER] = uuid.uuid4().hex
    yield os.environ[MARKER]
    del os.environ[MARKER]


@pytest.fixture(scope="module")
def engine(base, loop) -> Iterator[VllmEngine]:
    made = VllmEngine(str(base), {"p": None}, end_ids=[0], options=options(max_sequences=64))
    with marking() as marker:
        loop.run(made.start())
    yield made
    loop.run(made.close())
    assert ended(marker)


@pytest.fixture(scope="module")
def learners(base) -> dict[str, LanguageModel]:
    """Two adapters of one base, as they are trained."""
    sizes = {"a": Adapter(rank=2, alpha=4.0), "b": Adapter(rank=4, alpha=4.0)}
    model = load_model(str(base), device=CPU, dtype=torch.float32)
    made = with_adapters(model, load_tokenizer(str(base)), sizes, seed=0)
    for place, name in enumerate(made):
        change(made[name], seed=place, by=0.3)
    return made


@pytest.fixture(scope="module")
def two(base, loop) -> Iterator[VllmEngine]:
    sizes = {"a": Adapter(rank=2, alpha=4.0), "b": Adapter(rank=4, alpha=4.0)}
    made = VllmEngine(str(base), dict(sizes), end_ids=[0], options=options())
    with marking() as marker:
        loop.run(made.start())
    yield made
    loop.run(made.close())
    assert ended(marker)


def request(name: str = "r", *, policy: str = "p", prompt=PROMPT, seed: int = 3, n: int = 1, **how):
    sampling = Sampling(**{"temperature": 0.7, "max_tokens": 12, **how})
    return Request(name, policy, prompt, sampling, seed, ("t", 0, (0,)), n=n)


def expected(model: LanguageModel, prompt, one: Completion, sampling: Sampling) -> np.ndarray:
    """Log-probs [T] of sampled tokens under the distribution that the sampling asks for."""
    ids = torch.from_numpy(np.concatenate([prompt, one.tokens])).long()
    keep = torch.arange(len(prompt) - 1, len(ids) - 1)
    layout = Rows([len(ids)], device=CPU)
    with torch.no_grad():
        logits = model.logits(ids, layout.position, layout=layout, keep=keep)
    logprobs = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
    if sampling.top_k or sampling.top_p < 1.0:
        logprobs = torch.stack([kept(row, sampling) for row in logits])
    return logprobs.gather(-1, ids[keep + 1, None])[:, 0].numpy()


def gap(model: LanguageModel, asked: Request, one: Completion) -> float:
    return float(np.abs(expected(model, asked.prompt, one, asked.sampling) - one.logprobs).max())


HOW = [
    {"temperature": 0.7}, {"temperature": 0.0}, {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.8},
]  # fmt: skip


def test_sampled_log_probs_are_those_of_the_distribution_sampled_from(engine, base, loop):
    """Side by side in one batch."""
    model = language_model(base)
    asked = [request(f"{k}", seed=k, max_tokens=40, **how) for k, how in enumerate(HOW)]

    async def all_of_them():
        return await asyncio.gather(*map(engine.generate, asked))

    for one, [said] in zip(asked, loop.run(all_of_them()), strict=True):
        assert gap(model, one, said) <= CLOSE, one.sampling
        assert len(said.tokens) == 40 or said.finish == "stop"
        assert set(said.versions) == {0}
        assert [said.tokens.dtype, said.logprobs.dtype, said.versions.dtype] == [
            np.int32, np.float32, np.int32,
        ]  # fmt: skip


def test_ids_that_the_tokenizer_lacks_are_not_sampled(loop, tmp_path):
    """A third of the ids of this head."""
    base = make_model(tmp_path, padding=150)
    model = language_model(base)
    assert model.vocabulary < 300
    engine = VllmEngine(
        str(base), {"p": None}, end_ids=[0], options=options(), vocabulary=model.vocabulary
    )
    try:
        for asked in (request(n=4, max_tokens=40), request("g", max_tokens=40, temperature=0.0)):
            for one in loop.run(engine.generate(asked)):
                assert one.tokens.max() < model.vocabulary
                assert gap(model, asked, one) <= CLOSE
    finally:
        loop.run(engine.close())


def test_a_request_samples_the_same_whenever_it_is_made(engine, loop):
    first, again = (loop.run(engine.generate(request(n=3))) for _ in range(2))
    assert [one.tokens.tolist() for one in first] == [one.tokens.tolist() for one in again]
    assert len({tuple(one.tokens) for one in first}) == 3
    [alone] = loop.run(engine.generate(request(seed=derive_seed(3, 1))))
    assert alone.tokens.tolist() == first[1].tokens.tolist()


def test_stops_end_a_turn_and_stay_in_it(engine, base, loop):
    [free] = loop.run(engine.generate(request(max_tokens=30, seed=5)))
    assert free.finish == "length"
    assert len(free.tokens) == 30
    letters = load_tokenizer(str(base)).convert_ids_to_tokens(free.tokens.tolist())
    place = next(k for k in range(8, 30) if letters[k].isascii() and letters[k] not in letters[:k])
    for how in ({"stop": (letters[place],)}, {"stop_token_ids": (int(free.tokens[place]),)}):
        [said] = loop.run(engine.generate(request(max_tokens=30, seed=5, **how)))
        assert said.tokens.tolist() == free.tokens[: place + 1].tolist()
        assert len(said.logprobs) == len(said.versions) == place + 1
        assert said.finish == "stop"


def test_the_models_end_token_and_special_tokens_in_stops_end_a_turn(engine, base, loop):
    """Both are found by sampling often: random weights say every token now and then."""
    tokenizer = load_tokenizer(str(base))
    tag = tokenizer.convert_tokens_to_ids("<|user|>")
    asked = request(n=60, max_tokens=80, temperature=2.0, stop=("<|user|>",))
    said = loop.run(engine.generate(asked))
    last = [int(one.tokens[-1]) for one in said if one.finish == "stop"]
    assert {0, tag} == set(last)
    assert all(not {0, tag} & set(one.tokens[:-1].tolist()) for one in said)


def test_what_vllm_cannot_serve_is_an_error(engine, loop):
    long = np.zeros(LENGTH, dtype=np.int32) + 9
    with pytest.raises(ValueError, match="serves p, not 'q'"):
        loop.run(engine.generate(request(policy="q")))
    with pytest.raises(ContextFullError, match="the model's context of policy 'p' has room"):
        loop.run(engine.generate(request(prompt=long)))
    [said] = loop.run(engine.generate(request(prompt=long[1:])))
    assert len(said.tokens) == 1
    for wrong in (0.005, 2.5):
        with pytest.raises(ValueError, match=rf"at 0, or from 0\.01 to 2, not at {wrong}"):
            loop.run(engine.generate(request(temperature=wrong)))
    with pytest.raises(ValueError, match=r"at temperature 1 only, not at 0\.7"):
        loop.run(engine.score("p", PROMPT, PROMPT, temperature=0.7))


async def under_way(engine: VllmEngine, number: int) -> None:
    """Wait until vLLM knows of that many completions."""
    async with asyncio.timeout(5):
        while await engine._ask("check") != number:
            await asyncio.sleep(0.01)


def test_what_is_cancelled_is_forgotten(engine, loop):
    async def cancelled() -> None:
        tasks = [asyncio.create_task(engine.generate(request(str(k), n=4))) for k in range(3)]
        await under_way(engine, 12)
        tasks[0].cancel()
        await under_way(engine, 8)
        await engine.cancel("1")
        await under_way(engine, 4)
        await engine.cancel("2")
        await under_way(engine, 0)
        await engine.cancel("unknown")
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 3

    loop.run(engine.pause(keep=True))  # or they might end by themselves
    loop.run(cancelled())
    loop.run(engine.resume())


def test_a_pause_keeps_requests_or_ends_them(engine, loop):
    async def paused(keep: bool):
        await engine.pause(keep=True)
        task = asyncio.create_task(engine.generate(request()))
        done, _ = await asyncio.wait([task], timeout=0.3)
        assert not done
        if not keep:
            await engine.pause(keep=False)
        else:
            await engine.resume()
        return await task

    assert len(loop.run(paused(True))) == 1
    with pytest.raises(InfrastructureError, match="aborted the request"):
        loop.run(paused(False))
    loop.run(engine.resume())


def test_published_weights_are_what_is_scored_and_sampled(engine, base, changed, loop):
    """Twice in a row, with tied embeddings, and a prompt that was cached before."""
    models = [language_model(base), language_model(changed)]
    prompt = (np.arange(300) * 7919 % 250).astype(np.int32)  # more than one page of the cache
    asked = request(prompt=prompt, max_tokens=20)
    for version, folder in enumerate([changed, base, changed, base], 1):
        loop.run(engine.generate(asked))
        loop.run(engine.load_files("p", version, folder))
        new, old = models[version % 2], models[(version + 1) % 2]
        [said] = loop.run(engine.generate(asked))
        assert gap(new, asked, said) <= CLOSE
        assert gap(old, asked, said) > 0.1
        assert set(said.versions) == {version}
        scored = loop.run(engine.score("p", prompt[:40], prompt[40:], temperature=1.0))
        one = Completion(prompt[40:], scored, scored, "length")
        assert gap(new, request(prompt=prompt[:40], temperature=1.0), one) <= CLOSE


def test_a_request_goes_on_with_weights_that_arrive(engine, base, changed, loop):
    models = [language_model(base), language_model(changed)]
    asked = request(n=4, max_tokens=400)

    async def publishing() -> tuple[list[Completion], int]:
        task, version = asyncio.create_task(engine.generate(asked)), 10
        while not task.done():
            await asyncio.sleep(0.03)
            version += 1
            await engine.load_files("p", version, [base, changed][version % 2])
        return await task, version

    said, last = loop.run(publishing())
    one = max(said, key=lambda one: len(set(one.versions)))
    seen = sorted(set(one.versions.tolist()))
    assert len(seen) >= 2
    assert seen[-1] <= last
    assert one.versions.tolist() == sorted(one.versions.tolist())
    apart = np.stack(
        [np.abs(expected(m, PROMPT, one, asked.sampling) - one.logprobs) for m in models]
    )
    assert np.all(apart[one.versions % 2, np.arange(len(one.tokens))] <= CLOSE)
    assert np.median(apart[1 - one.versions % 2, np.arange(len(one.tokens))]) > 0.01


def test_files_that_do_not_fit_are_an_error_and_nothing_is_sampled_until_others_come(
    engine, base, loop, tmp_path
):
    with pytest.raises(ValueError, match="has no safetensors files"):
        loop.run(engine.load_files("p", 1000, tmp_path))
    shutil.copy(base / "model.safetensors", tmp_path)
    lose(tmp_path / "model.safetensors", "model.norm.weight")
    with pytest.raises(ValueError, match=r"weights are missing: \['model.norm.weight'\], 1 in all"):
        loop.run(engine.load_files("p", 1000, tmp_path))
    with pytest.raises(InfrastructureError, match="weights are unknown"):
        loop.run(engine.generate(request()))
    loop.run(engine.load_files("p", 1001, base))
    [said] = loop.run(engine.generate(request()))
    assert gap(language_model(base), request(), said) <= CLOSE


def test_adapters_are_the_base_until_their_first_weights_come(two, base, learners, loop, tmp_path):
    """Which a request that was already made samples with, too."""
    plain, folder = language_model(base), tmp_path / "a"
    learners["a"].save(folder)

    async def first() -> Completion:
        await two.pause(keep=True)
        task = asyncio.create_task(two.generate(request(policy="a")))
        await under_way(two, 1)
        await two.load_files("a", 1, folder)
        assert not task.done()  # it is still paused
        await two.resume()
        [said] = await task
        return said

    [said] = loop.run(two.generate(request(policy="a")))
    assert gap(plain, request(), said) <= CLOSE
    assert set(said.versions) == {0}
    said = loop.run(first())
    assert gap(learners["a"], request(), said) <= CLOSE
    assert set(said.versions) == {1}


def test_an_adapter_is_published_while_others_go_on(two, learners, loop, tmp_path):
    """`a` gets new weights while both sample."""
    for version, name in enumerate(["a", "b"], 1):
        learners[name].save(tmp_path / f"{name}1")
        loop.run(two.load_files(name, version, tmp_path / f"{name}1"))

    def logprobs(name: str, one: Completion) -> np.ndarray:
        return expected(learners[name], PROMPT, one, request().sampling)

    async def publishing() -> tuple[Completion, Completion]:
        asked = (request(name, policy=name, max_tokens=400) for name in "ab")
        tasks = [asyncio.create_task(two.generate(one)) for one in asked]
        version = 5
        while not tasks[0].done():
            await asyncio.sleep(0.1)
            # Odd versions are the weights of `b`, even ones its own.
            folder = tmp_path / ("b1" if version % 2 else "a1")
            await two.load_files("a", version, folder)
            version += 1
        [[mine], [other]] = await asyncio.gather(*tasks)
        return mine, other

    mine, other = loop.run(publishing())
    assert set(other.versions) == {2}
    assert np.abs(logprobs("b", other) - other.logprobs).max() <= CLOSE
    seen = set(mine.versions.tolist())
    assert len(seen) >= 2
    assert seen - {1} <= set(range(5, 1000))
    for version in seen:
        name = "b" if version >= 5 and version % 2 else "a"
        apart = np.abs(logprobs(name, mine) - mine.logprobs)[mine.versions == version]
        assert apart.max() <= CLOSE, version


def test_an_adapter_that_does_not_fit_leaves_the_old_one(two, learners, loop, tmp_path):
    learners["b"].save(tmp_path / "b")
    loop.run(two.load_files("b", 1000, tmp_path / "b"))
    config = tmp_path / "b/adapter_config.json"
    text = config.read_text()
    config.write_text(text.replace('"r": 4', '"r": 64'))
    with pytest.raises(ValueError, match="has rank 64; vLLM was started for 8"):
        loop.run(two.load_files("b", 1001, tmp_path / "b"))
    config.write_text(text.replace("q_proj", "q_prox"))
    weights = tmp_path / "b/adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"q_proj", b"q_prox"))
    with pytest.raises(ValueError, match="q_prox"):
        loop.run(two.load_files("b", 1001, tmp_path / "b"))
    [said] = loop.run(two.generate(request(policy="b")))
    assert gap(learners["b"], request(), said) <= CLOSE
    assert set(said.versions) == {1000}


@pytest.mark.parametrize(
    ("case", "widths", "dtype"),
    [
        (("full", "Qwen3Moe"), {"head_dim": 32}, "float32"),
        # Of vLLM's kernels for linear attention there are only some on a CPU.
        (("apart", "Qwen3Next"),
         {"head_dim": 64, "linear_key_head_dim": 128, "linear_value_head_dim": 128}, "bfloat16"),
    ],
    ids=["experts", "convolutions"],
)  # fmt: skip
def test_weights_that_vllm_packs_once_on_a_cpu_cannot_be_published(
    case, widths, dtype, base, loop, tmp_path
):
    """What was loaded first is sampled all the same."""
    folder = make(tmp_path / "old", *case, hidden_size=128, intermediate_size=128,
                  max_position_embeddings=LENGTH, **widths)  # fmt: skip
    load_tokenizer(str(base)).save_pretrained(folder)
    how = options(max_sequences=8, dtype=dtype)
    made = VllmEngine(str(folder), {"p": None}, end_ids=[0], options=how)
    try:
        loop.run(made.generate(request(temperature=1.0)))
        with pytest.raises(ValueError, match=r"takes no new weights.*engine\.name: local"):
            loop.run(made.load_files("p", 1, folder))
    finally:
        loop.run(made.close())


@pytest.mark.parametrize("killed", [False, True])
def test_ranks_that_share_a_model_leave_nothing_in_shared_memory(killed, base, changed, loop):
    before = set(MEMORY.glob("vllm_dist_*"))
    made = VllmEngine(str(base), {"p": None}, end_ids=[0], options=options(tensor_parallel=2))
    try:
        for version, folder in enumerate((base, changed)):
            if version:
                loop.run(made.load_files("p", version, folder))
            [said] = loop.run(made.generate(request()))
            assert gap(language_model(folder), request(), said) <= CLOSE
        assert set(MEMORY.glob("vllm_dist_*")) - before
        if killed:
            os.kill(made._process._process.pid, signal.SIGKILL)
            with pytest.raises(InfrastructureError, match="SIGKILL"):
                loop.run(made.generate(request()))
    finally:
        loop.run(made.close())
    assert set(MEMORY.glob("vllm_dist_*")) <= before


def test_a_process_that_dies_at_its_start_shows_its_last_lines(loop, tmp_path):
    """The cause, which vLLM's core writes, and then vLLM's front says more of the same."""
    folder = make_model(tmp_path / "broken")
    lose(folder / "model.safetensors", "model.norm.weight")
    made = VllmEngine(str(folder), {"p": None}, end_ids=[0], options=options())
    wanted = r"\(exit code 1\): ValueError: .*model\.norm\.weight.* ends with:\n"
    with marking() as marker, pytest.raises(InfrastructureError, match=wanted):
        loop.run(made.generate(request()))
    with pytest.raises(InfrastructureError, match="ended while it started"):
        loop.run(made.check())
    loop.run(made.close())
    assert marked(marker) == []


def test_layers_without_adapters_are_an_error_and_a_closed_engine_leaves_no_process(base, loop):
    adapter = Adapter(targets=["q_proj", "nonsense"])
    made = VllmEngine(str(base), {"a": adapter}, end_ids=[0], options=options())
    wanted = r"^policies\.a\.adapter\.targets: vLLM has no adapters on 'nonsense'; .*q_proj"
    with marking() as marker, pytest.raises(ValueError, match=wanted):
        loop.run(made.start())
    log = made._process.log
    assert len(marked(marker)) == 2
    loop.run(made.close())
    assert marked(marker) == []
    assert not log.parent.exists()
    with pytest.raises(InfrastructureError, match="the vLLM engine was closed"):
        loop.run(made.generate(request(policy="a")))


def test_a_process_that_takes_too_long_to_start_is_ended(base, loop):
    slow = options(start_timeout_s=0.3)
    made = VllmEngine(str(base), {"p": None}, end_ids=[0], options=slow)
    wanted = r"did not start within 0\.3 s .*\(SIGKILL\)"
    with marking() as marker, pytest.raises(InfrastructureError, match=wanted):
        loop.run(made.start())
    loop.run(made.close())
    assert marked(marker) == []


DRIVER = """
import asyncio, sys
from rolecall.config.vllm import VllmEngineConfig
from rolecall.engines.vllm.engine import VllmEngine
options = VllmEngineConfig(eager=True, cache_gb=0.05, max_length=64, log=sys.argv[2])
engine = VllmEngine(sys.argv[1], {"p": None}, end_ids=[0], options=options)
asyncio.run(engine.start())
"""


def test_a_driver_that_is_killed_leaves_no_process(base, tmp_path):
    """While vLLM starts, as soon as the process that computes is there."""
    mine = uuid.uuid4().hex
    arguments = [sys.executable, "-c", DRIVER, str(base), str(tmp_path / "log")]
    with tempfile.TemporaryDirectory() as short:  # names of sockets have 107 letters at most
        environment = {**os.environ, MARKER: mine, "TMPDIR": short}
        driver = subprocess.Popen(arguments, env=environment)
        try:
            until = time.monotonic() + 60
            log = tmp_path / "log"
            while not (log.exists() and "(EngineCore" in log.read_text()):
                assert time.monotonic() < until
                assert driver.poll() is None
                time.sleep(0.05)
            assert len(marked(mine)) >= 3  # the driver, vLLM's front and its core
        finally:
            driver.kill()
            driver.wait()
        assert ended(mine)


def test_a_killed_core_ends_requests_with_an_error(two, loop):
    """Of the shared engine: it ends here."""

    async def killed():
        await two.pause(keep=True)
        task = asyncio.create_task(two.generate(request(policy="a")))
        await under_way(two, 1)
        [core] = children(two._process._process.pid)
        os.kill(core, signal.SIGKILL)
        await task

    with pytest.raises(InfrastructureError, match=r"(?s)\(exit code 70\).*core has ended"):
        loop.run(asyncio.wait_for(killed(), 30))


def test_a_killed_process_ends_requests_with_an_error(engine, loop):
    """Of the shared engine: it ends here."""

    async def killed():
        await engine.pause(keep=True)
        task = asyncio.create_task(engine.generate(request()))
        await under_way(engine, 1)
        os.kill(engine._process._process.pid, signal.SIGKILL)
        await task

    with pytest.raises(InfrastructureError, match=r"vLLM's process ended \(SIGKILL\); its log"):
        loop.run(killed())
    for call in (engine.check(), engine.generate(request())):
        with pytest.raises(InfrastructureError, match="SIGKILL"):
            loop.run(call)


def children(pid: int) -> list[int]:
    """Processes under one, less multiprocessing's own."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    tracker = b"resource_tracker"
    return [int(one) for one in found if tracker not in Path(f"/proc/{one}/cmdline").read_bytes()]
