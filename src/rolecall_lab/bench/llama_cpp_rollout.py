"""Measures how fast llama.cpp samples a team's talks in one batch, by its own C functions.

Each step decodes one token of every talk together with the prompts of those that go on. A task's
prompt is read once and its keys and values are copied. The tokens are drawn here from the logits,
with their log-probs, as llama.cpp's own samplers take one row at a time.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import numpy as np
import torch

from rolecall.core.types import Ids
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.gguf_models import write_gguf
from rolecall_lab.bench.small_models import random_model, vocabulary
from rolecall_lab.bench.workload import Talk, TeamSize, talks

MAX_LENGTH = 512  # the longest talk has 480 tokens
BATCH = 2048  # tokens of one pass


@dataclass(slots=True)
class Sequence:
    """One talk, and what its cache holds."""

    number: int
    talk: Talk
    prompt: Ids
    length: int  # tokens that are still to be said
    cached: int = 0  # tokens of the prompt and the answer in the cache
    answer: list[int] = field(default_factory=list)

    def waiting(self) -> list[int]:
        """Return the tokens that have not been read."""
        start = max(0, self.cached - len(self.prompt))
        return [*self.prompt[self.cached :].tolist(), *self.answer[start:]]


class LlamaCpp:
    """One model in llama.cpp, with a cache for so many talks."""

    def __init__(self, file: Path, *, sequences: int, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.model = llama_cpp.llama_model_load_from_file(
            str(file).encode(), llama_cpp.llama_model_default_params()
        )
        assert self.model, f"llama.cpp cannot read {file}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * MAX_LENGTH
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = sequences
        params.kv_unified = True
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        threads = int(os.environ["OMP_NUM_THREADS"])
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, "llama.cpp has no room for the talks"
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def share(self, first: Sequence, other: Sequence) -> None:
        """Give another talk what the first one has read."""
        llama_cpp.llama_memory_seq_cp(self.memory, first.number, other.number, 0, first.cached)
        other.cached = first.cached

    def read(self, parts: list[tuple[Sequence, list[int]]], *, asks: bool) -> np.ndarray:
        """Read the next tokens of talks; return the logits [R, V] after each talk's last one."""
        batch, rows = self.batch, []
        batch.n_tokens = sum(len(tokens) for _, tokens in parts)
        at = 0
        for sequence, tokens in parts:
            for token in tokens:
                batch.token[at], batch.pos[at] = token, sequence.cached
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence.number
                batch.logits[at] = False
                sequence.cached += 1
                at += 1
            batch.logits[at - 1] = asks
            rows.append(at - 1)
        assert llama_cpp.llama_decode(self.context, batch) == 0
        if not asks:
            return np.zeros((0, self.vocabulary), np.float32)
        return np.stack([self._row(row) for row in rows])

    def _row(self, index: int) -> np.ndarray:
        address = llama_cpp.llama_get_logits_ith(self.context, index)
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (self.vocabulary,))


def set_up(size: TeamSize, folder: Path) -> Measure:
    file = write_gguf(random_model(folder, size.model), size.dtype)

    def load() -> LlamaCpp:
        return LlamaCpp(file, sequences=size.episodes, vocabulary=vocabulary(size.model))

    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    decoder = load()

    def measure(run: int) -> Measured:
        nonlocal decoder
        played = talks(size, run)
        started = time.perf_counter()
        if size.trains:
            decoder.close()
            decoder = load()
        count = play_all(decoder, played, samples=size.samples, run=run)
        took = time.perf_counter() - started
        llama_cpp.llama_memory_clear(decoder.memory, True)
        return Measured(count / took, {"sampled tokens": count})

    return measure


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


def play_all(decoder: LlamaCpp, played: list[Talk], *, samples: int, run: int) -> int:
    """Play all talks to their end and return how many tokens were sampled."""
    torch.manual_seed(run)
    active = [Sequence(number, talk, *next(talk)) for number, talk in enumerate(played)]
    for first in active[::samples]:
        decoder.read([(first, first.waiting()[:-1])], asks=False)
        for other in active[first.number + 1 : first.number + samples]:
            decoder.share(first, other)
    count = 0
    while active:
        parts: list[tuple[Sequence, list[int]]] = []
        room = BATCH
        for sequence in active:
            tokens = sequence.waiting()
            if len(tokens) <= room:
                parts.append((sequence, tokens))
                room -= len(tokens)
        logits = torch.from_numpy(decoder.read(parts, asks=True))
        logprobs = logits.log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1)
        logprobs.gather(1, drawn)  # nobody reads them, but a trainer would
        count += len(parts)
        for (sequence, _), token in zip(parts, drawn[:, 0].tolist(), strict=True):
            sequence.answer.append(token)
            sequence.length -= 1
        active = [sequence for sequence in active if _goes_on(sequence)]
    return count


def _goes_on(sequence: Sequence) -> bool:
    """Begin the next turn where one has ended; return whether there is more to say."""
    if sequence.length:
        return True
    try:
        sequence.prompt, sequence.length = sequence.talk.send(np.array(sequence.answer, np.int32))
    except StopIteration:
        return False
    sequence.answer = []
    return True
