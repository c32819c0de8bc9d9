"""Benchmarks one training update on the turns of solver-verifier episodes."""

from __future__ import annotations

import numpy as np

from rolecall.core.types import Ids, Turn, spread
from rolecall_lab.bench import Benchmark
from rolecall_lab.bench.workload import AGENTS, SEED, VOCABULARY, TeamSize, random_ids, talks

POLICY = "policy"
LEARNING_RATE = 1e-6
CLIP_NORM = 1.0


def turns(size: TeamSize, run: int) -> list[Turn]:
    """Turns of random tokens, with an advantage each; the sampler was close to a uniform one."""
    random = np.random.default_rng([SEED, run, 1])
    sampled_turns: list[Turn] = []
    for number, talk in enumerate(talks(size, run)):
        prompt, length = next(talk)
        for call, agent in enumerate(AGENTS):
            tokens = random_ids(random, 1, length)[0]
            sampled_turns.append(_turn(agent, prompt, tokens, random, place=(number, call)))
            try:
                prompt, length = talk.send(tokens)
            except StopIteration:
                break
    return sampled_turns


def _turn(
    agent: str, prompt: Ids, tokens: Ids, random: np.random.Generator, *, place: tuple[int, int]
) -> Turn:
    number, call = place
    turn = Turn(
        id=f"{number}/{call}",
        task=str(number),
        episode=str(number),
        agent=agent,
        policy=POLICY,
        path=(call,),
        prompt=prompt,
        tokens=tokens,
        logprobs=random.normal(-np.log(VOCABULARY), 0.1, len(tokens)).astype(np.float32),
        versions=np.zeros(len(tokens), dtype=np.int32),
    )
    turn.advantages = spread(turn, random.normal())
    return turn


BENCHMARKS = [
    Benchmark(
        name="update",
        unit="updates/s",
        work=(
            "One optimizer step with GRPO's loss on the turns of 64 solver-verifier episodes (8 "
            "tasks x 8), lengths as in team-rollout-s, 0.8 million weights, one policy. Making "
            "batches of the turns counts."
        ),
        full=TeamSize("s", tasks=8, samples=8),
        smoke=TeamSize("xs", tasks=2, samples=2),
        ours="rolecall_lab.bench.packed_update:set_up",
        peers={"padded": "rolecall_lab.bench.padded_update:set_up"},
    )
]
