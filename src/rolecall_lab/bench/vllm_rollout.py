"""Measures how fast vLLM samples a team's talks, each episode on its own, as our engine does.

A finished turn's successor joins the running batch at the next step: there is no barrier between
agents, which is kinder to vLLM than a `generate` call for each of them. Log-probs are asked for,
and new weights taken from a file, where the workload trains.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine computes in this process
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # OMP_NUM_THREADS says how many, as to all
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GB; as much as our engine's cache_gb
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ["HF_HUB_OFFLINE"] = "1"

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from rolecall.core.types import Ids
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.small_models import random_model
from rolecall_lab.bench.workload import Talk, TeamSize, talks

MAX_LENGTH = 1024  # the longest talk has 480 tokens


def set_up(size: TeamSize, folder: Path) -> Measure:
    base = random_model(folder, size.model)
    llm = LLM(
        model=str(base), skip_tokenizer_init=True, dtype=size.dtype, enable_prefix_caching=True,
        max_model_len=MAX_LENGTH, max_num_seqs=256,
        enforce_eager=size.model == "xs",  # compiled wherever speed is looked at: it is faster
        worker_extension_cls="rolecall.engines.vllm.whole_weights_worker.WholeWeights",
    )  # fmt: skip

    def measure(run: int) -> Measured:
        played = talks(size, run)
        started = time.perf_counter()
        if size.trains:
            [problem] = llm.collective_rpc("take_files", args=([str(base / "model.safetensors")],))
            assert not problem, problem
            llm.reset_prefix_cache()
        count = _play_all(llm.llm_engine, played, run=run, logprobs=size.trains)
        return Measured(count / (time.perf_counter() - started), {"sampled tokens": count})

    return measure


def _play_all(engine: LLMEngine, played: list[Talk], *, run: int, logprobs: bool) -> int:
    count = turns = 0
    talk_of: dict[str, Talk] = {}  # by the id of the request that it waits for

    def ask(talk: Talk, prompt: Ids, length: int) -> None:
        nonlocal turns
        turns += 1
        name = f"{run}/{turns}"
        talk_of[name] = talk
        sampling = SamplingParams(
            temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY, logprobs=0 if logprobs else None,
        )  # fmt: skip
        engine.add_request(name, TokensPrompt(prompt_token_ids=prompt.tolist()), sampling)

    for talk in played:
        ask(talk, *next(talk))
    while talk_of:
        for output in engine.step():
            tokens = np.array(output.outputs[0].token_ids, dtype=np.int32)
            count += len(tokens)
            talk = talk_of.pop(output.request_id)
            try:
                ask(talk, *talk.send(tokens))
            except StopIteration:
                continue
    return count
