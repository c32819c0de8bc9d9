"""SGLang's interface as an engine: what it samples, and what a publication changes.

The server is a stand-in with a real small model behind it; a real SGLang server has not run.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoConfig

from rolecall.config.load import load
from rolecall.config.schema import Adapter
from rolecall.config.served import SGLangEngineConfig
from rolecall.core.errors import ConfigError, InfrastructureError
from rolecall.core.interfaces.engine import Completion, ContextFullError, Request, Sampling
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.core.interfaces.weights import PublishError
from rolecall.engines.served.sglang import SGLangEngine
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_tokenizer
from rolecall.setup.plan import validate
from tests.algorithms.test_every_algorithm import Display, StoppedError, train, trainer_of
from tests.engines import test_shared_base
from tests.engines.sglang_stand_in import standing_in
from tests.toy import language_model, relay_config, write

pytestmark = pytest.mark.slow

PROMPT = np.array([65, 66, 67, 68], dtype=np.int32)
CLOSE = 1e-4  # nats
WHOLE = {"p": None}
TWO = {"a": Adapter(rank=2, alpha=4.0), "b": Adapter(rank=3, alpha=4.0)}


def engine_of(server, policies=WHOLE, **options) -> SGLangEngine:
    given = {"url": server.url, "timeout_s": 5.0, "pause_s": 0.01} | options
    return SGLangEngine(SGLangEngineConfig(**given), policies, end_ids=[0], key=None)


def request(name="r", *, policy="p", prompt=PROMPT, seed=3, n=1, **how) -> Request:
    sampling = Sampling(**{"temperature": 0.7, "max_tokens": 12, **how})
    return Request(name, policy, prompt, sampling, seed, ("t", 0, (0,)), n=n)


def gap(model: LanguageModel, one: Completion, *, prompt=PROMPT, temperature=0.7) -> float:
    """Nats between the sampler's log-probs and what our own engine says of these weights."""
    made = test_shared_base.engine({"p": model})
    said = asyncio.run(made.score("p", prompt, one.tokens, temperature=temperature))
    return float(np.abs(said - one.logprobs).max())


def changed(folder, model: LanguageModel, *, seed: int):
    """The weights some updates later, in a folder as a learner writes it."""
    torch.manual_seed(seed)
    for _, parameter in model.named_parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    folder.mkdir()
    model.write_weights(folder)
    return folder


def test_sampled_log_probs_are_those_of_the_learners_weights(model_folder):
    """Contract 1 at T = 0.7, and greedily at 1."""

    async def go(server):
        engine = engine_of(server)
        assert isinstance(engine, FileEngine)
        await engine.check()
        asked = [request(n=4, max_tokens=24), request(temperature=0.0)]
        found = [one for each in asked for one in await engine.generate(each)]
        again = await engine.generate(asked[0])
        await engine.close()
        return found, again

    with standing_in(model_folder) as (_, server):
        found, again = asyncio.run(go(server))
        sent = next(a.body for a in server.of("/generate"))
    model = language_model(model_folder)
    for one in found[:4]:
        assert gap(model, one) <= CLOSE
        assert gap(model, one, temperature=1.0) > 0.01
        assert one.versions.tolist() == [0] * len(one.tokens)
        assert (one.tokens.dtype, one.logprobs.dtype) == (np.int32, np.float32)
        assert len(one.tokens) == 24 if one.finish == "length" else one.tokens[-1] == 0
    assert gap(model, found[4], temperature=1.0) <= CLOSE
    assert len({tuple(one.tokens) for one in found[:4]}) == 4
    assert [one.tokens.tolist() for one in again] == [one.tokens.tolist() for one in found[:4]]
    assert sent["sampling_params"]["top_k"] == -1


def test_ids_of_a_padded_head_are_not_sampled(model_folder):
    """As if the tokenizer had half of the ids."""
    size = AutoConfig.from_pretrained(model_folder).vocab_size
    padded = range(size // 2, size)

    async def go(server):
        options = SGLangEngineConfig(url=server.url, timeout_s=5.0)
        engine = SGLangEngine(options, WHOLE, end_ids=[0], key=None, padded_ids=padded)
        found = await engine.generate(request(n=4, max_tokens=24))
        await engine.close()
        return found

    with standing_in(model_folder) as (_, server):
        found = asyncio.run(go(server))
    assert max(one.tokens.max() for one in found) < size // 2


def test_an_end_exactly_at_the_limit_is_an_end(model_folder):
    """SGLang calls it a cut, which would be masked or penalised."""

    async def go(server):
        engine = engine_of(server)
        await engine.check()
        [free] = await engine.generate(request(temperature=0.0, max_tokens=4))
        ends = (int(free.tokens[2]),)  # the third token ends the next answer
        sampling = {"temperature": 0.0, "stop_token_ids": ends}
        found = [
            one
            for limit in (2, 3, 4)
            for one in await engine.generate(request(**sampling, max_tokens=limit))
        ]
        await engine.close()
        return free, found

    with standing_in(model_folder) as (_, server):
        free, found = asyncio.run(go(server))
    expected = list(free.tokens[:3]).index(free.tokens[2]) + 1
    assert expected == 3, "the end stands nowhere before"
    assert [one.finish for one in found] == ["length", "stop", "stop"]
    assert [len(one.tokens) for one in found] == [2, 3, 3]


def test_published_weights_are_what_is_sampled_and_scored(model_folder, tmp_path):
    """Contract 7, twice."""
    old, new = language_model(model_folder), language_model(model_folder)
    new_files = changed(tmp_path / "new", new, seed=1)
    tokens = np.arange(30, 60, dtype=np.int32)

    async def go(server):
        engine = engine_of(server)
        found = []
        for version, folder in ((5, new_files), (6, model_folder)):
            await engine.load_files("p", version, folder)
            [said] = await engine.generate(request())
            found.append((said, await engine.score("p", PROMPT, tokens, temperature=1.0)))
        await engine.close()
        return found

    with standing_in(model_folder) as (_, server):
        found = asyncio.run(go(server))
    for (said, scored), version, right, wrong in (
        (found[0], 5, new, old), (found[1], 6, old, new)
    ):  # fmt: skip
        assert set(said.versions.tolist()) == {version}
        assert gap(right, said) <= CLOSE
        assert gap(wrong, said) > 0.1
        whole = Completion(tokens, scored, tokens, "stop")
        assert gap(right, whole, temperature=1.0) <= CLOSE
        assert gap(wrong, whole, temperature=1.0) > 0.1


def test_adapters_are_published_one_by_one_beside_their_base(model_folder, tmp_path):
    learners = test_shared_base.adapters(model_folder, "a", "b")
    base = language_model(model_folder)
    first = {name: changed(tmp_path / name, learners[name], seed=2) for name in learners}

    async def go(server, stand_in):
        engine = engine_of(server, {**TWO, "p": None})
        [untouched] = await engine.generate(request(policy="a"))
        for version, name in enumerate(first, 1):
            await engine.load_files(name, version, first[name])
        before = {name: (await engine.generate(request(policy=name)))[0] for name in "abp"}
        second = changed(tmp_path / "a2", learners["a"], seed=3)
        await engine.load_files("a", 9, second)
        after = {name: (await engine.generate(request(policy=name)))[0] for name in "abp"}
        loaded = list(stand_in.adapters)
        await engine.close()
        return untouched, before, after, loaded

    with standing_in(model_folder) as (stand_in, server):
        untouched, before, after, loaded = asyncio.run(go(server, stand_in))
        assert len(loaded) == 2
        assert stand_in.adapters == []
    assert gap(base, untouched) <= CLOSE
    assert gap(learners["a"], after["a"]) <= CLOSE
    assert gap(learners["a"], before["a"]) > 0.1
    assert gap(learners["b"], before["b"]) <= CLOSE
    assert after["b"].tokens.tolist() == before["b"].tokens.tolist()
    assert gap(base, after["p"]) <= CLOSE
    assert [set(after[n].versions.tolist()) for n in "abp"] == [{9}, {2}, {0}]


def test_stops_end_a_turn_and_stay_in_it(model_folder):
    tokenizer = load_tokenizer(str(model_folder))

    async def go(server):
        engine = engine_of(server)
        [free] = await engine.generate(request(max_tokens=30, temperature=1.5))
        # A character that stands alone, so that its text ends what its token ends.
        stop = next(t for t in free.tokens.tolist()[4:] if tokenizer.decode([t]).isalnum())
        found = [
            (await engine.generate(request(max_tokens=30, temperature=1.5, **how)))[0]
            for how in ({"stop_token_ids": (stop,)}, {"stop": (tokenizer.decode([stop]),)})
        ]
        await engine.close()
        return free.tokens.tolist(), stop, found

    with standing_in(model_folder) as (_, server):
        free, stop, found = asyncio.run(go(server))
    for one in found:
        assert one.tokens.tolist() == free[: free.index(stop) + 1]
        assert len(one.logprobs) == len(one.versions) == len(one.tokens)
        assert one.finish == "stop"


def test_what_the_server_cannot_do_is_an_error(model_folder, tmp_path):
    long = np.full(60, 9, np.int32)

    async def go(server, stand_in):
        engine = engine_of(server)
        with pytest.raises(ValueError, match="serves p, not 'q'"):
            await engine.generate(request(policy="q"))
        with pytest.raises(ContextFullError, match="the server's context of policy 'p' has room"):
            await engine.generate(request(prompt=long))
        [last] = await engine.generate(request(prompt=long[1:]))
        assert len(last.tokens) == 1
        with pytest.raises(ValueError, match=r"at temperature 1 only, not at 0\.7"):
            await engine.score("p", PROMPT, PROMPT, temperature=0.7)
        with pytest.raises(ContextFullError, match="60 tokens are to be scored"):
            await engine.score("p", PROMPT, long[4:], temperature=1.0)
        with pytest.raises(InfrastructureError, match=r"HTTP 400: .*no files"):
            await engine.load_files("p", 1, tmp_path)
        [still] = await engine.generate(request())
        assert set(still.versions.tolist()) == {0}
        stand_in.abort = True
        with pytest.raises(InfrastructureError, match=r"aborted the request: Abort by a test"):
            await engine.generate(request())
        await engine.close()

    with standing_in(model_folder, context=60) as (stand_in, server):
        asyncio.run(go(server, stand_in))


def test_pauses_memory_and_caches_are_the_servers(model_folder):
    async def go(server, stand_in):
        engine = engine_of(server, sleep=True)
        assert {"pause", "sleep"} <= engine.can
        await engine.pause(keep=True)
        waiting = asyncio.create_task(engine.generate(request()))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        await engine.resume()
        assert await waiting
        await engine.reset_prefix_cache()
        await engine.sleep(weights=False)
        await engine.sleep(weights=True)
        assert stand_in.released == {"kv_cache", "weights"}
        await engine.wake("weights")
        await engine.wake("weights")
        await engine.wake("cache")
        assert await engine.generate(request())
        silent = engine_of(server)
        await silent.sleep(weights=True)
        await silent.wake("cache")
        await engine.close()
        await silent.close()

    with standing_in(model_folder) as (stand_in, server):
        asyncio.run(go(server, stand_in))
        assert not stand_in.released
        assert len(server.of("/release_memory_occupation")) == 2
        assert server.of("/pause_generation")[0].body == {"mode": "retract"}


def test_weights_go_through_a_folder_that_both_see(model_folder, tmp_path):
    place, seen = tmp_path / "shared", []

    async def go(server):
        engine = engine_of(server, weights_folder=str(place))
        await engine.check()
        await engine.load_files("p", 1, model_folder)
        await engine.close()

    with standing_in(model_folder) as (_, server):
        asyncio.run(go(server))
        seen = [asked.body["model_path"] for asked in server.of("/update_weights_from_disk")]
    assert [str(place) in path for path in seen] == [True]
    assert list(place.iterdir()) == []


def served(folder, url: str, **policies) -> dict:
    """Two policies, of which a server samples one."""
    config = relay_config(folder, evaluation={"tasks": 0}, trainer={"steps": 2, "save_every": 1})
    config["policies"]["a"]["engine"] = {"name": "sglang", "url": url, "timeout_s": 5.0}
    for name, options in policies.items():
        config["policies"][name] |= options
    return config


def test_a_run_trains_what_the_server_samples_and_resumes(model_folder, tmp_path):
    folder = tmp_path / "run"
    with standing_in(model_folder) as (stand_in, server):
        config = served(model_folder, server.url)
        trainer = trainer_of(config, folder, Display(stop_after=1))
        with pytest.raises(StoppedError):
            asyncio.run(trainer.train())
        trainer.folder.release()
        display = train(config, folder)
        newest = (folder / "checkpoints/latest").read_text().strip()
        wanted = language_model(folder / "checkpoints" / newest / "a").model.state_dict()
        for name, tensor in stand_in.base.state_dict().items():
            assert torch.equal(tensor, wanted[name]), name
    assert display.last["step"] == 2
    assert display.last["policy/a/grad_norm"] > 0
    rows = pq.read_table(folder / "episodes/step-000002.parquet").to_pylist()
    versions = {name: {v for row in rows if row["policy"] == name for v in row["versions"]}
                for name in "ab"}  # fmt: skip
    assert versions == {"a": {1}, "b": {1}}
    assert display.last["agent/left/mismatch_mean"] < 1e-4


@pytest.mark.evidence
def test_two_adapters_train_on_one_server(model_folder, tmp_path):
    adapters = {"adapter": {"rank": 2}, "optimizer": {"lr": 0.05}}
    with standing_in(model_folder) as (_, server):
        section = {"name": "sglang", "url": server.url, "timeout_s": 5.0}
        config = served(model_folder, server.url, a=adapters, b=adapters | {"engine": section})
        display = train(config, tmp_path / "run")
        loads = server.of("/load_lora_adapter")
    assert len(loads) == 6  # both at the start and after each step
    assert display.last["policy/b/grad_norm"] > 0


def test_a_server_that_keeps_its_weights_is_found_out(model_folder, tmp_path):
    """Contract 7: the probe after a publication."""
    with standing_in(model_folder) as (stand_in, server):
        stand_in.forgetful = True
        config = served(model_folder, server.url, a={"optimizer": {"lr": 0.1}})
        with pytest.raises(PublishError, match="after publishing 'a' version 1"):
            train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"b": {"engine": {"name": "sglang"}}}, "change all weights at http://127.0.0.1:30000"),
        (
            {"b": {"adapter": {}, "engine": {"name": "sglang", "concurrency": 3}}},
            "policies.b.engine: policies.a has another section for http://127.0.0.1:30000",
        ),
        (
            {"a": {"adapter": {}}, "b": {"base": "tiny:math", "engine": "sglang", "adapter": {}}},
            "policies.b.base: http://127.0.0.1:30000 serves policies.a with another base",
        ),
        ({"a": {"engine": {"name": "sglang", "url": "x"}}}, "begins with http:// or https://"),
    ],
)
def test_what_one_server_cannot_serve_is_an_error_before_the_run(
    model_folder, tmp_path, changes, told
):
    config = served(model_folder, "http://127.0.0.1:30000")
    config["policies"]["a"]["engine"] = "sglang"
    for name, options in changes.items():
        config["policies"][name] |= options
    with pytest.raises(ConfigError) as raised:
        validate(load(write(tmp_path / "team.yaml", config)))
    assert told in str(raised.value)
