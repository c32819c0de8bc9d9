"""Measures what our own Python costs: many episodes with an engine that answers without a model."""

from __future__ import annotations

from dataclasses import dataclass

from rolecall_lab.bench import Benchmark


@dataclass(frozen=True, slots=True)
class CrowdSize:
    """Episodes of three turns, all of them live at once."""

    episodes: int
    context: str  # "module:function" that makes one for a Crowd


CROWD = "rolecall_lab.bench.crowd"
IDS = "rolecall_lab.bench.conductor_ids"
CHAT = "rolecall_lab.bench.conductor_chat"
PATHS = {
    IDS: (
        "through `rollout.collect`, whose workflow calls `Engine.generate` with 120 tokens, "
        "gets 32, and makes a `Turn`: no text, no tokenizer"
    ),
    CHAT: (
        "through `rollout.collect` and the team: chat template, tokenizer, `Engine.generate`, "
        "a recorded `Turn` with its text"
    ),
}


def _benchmarks(name: str, module: str) -> list[Benchmark]:
    full, smoke = (CrowdSize(number, f"{module}:make_context") for number in (10_000, 40))
    crowd = f"10,000 scripted episodes of 3 turns at once, {PATHS[module]}"
    return [
        Benchmark(name, "turns/s", f"{crowd}.", full, smoke, f"{CROWD}:set_up"),
        Benchmark(
            f"{name}-linearity",
            "speed at 10,000 / at 2,500",
            f"The same with a quarter of the episodes before it: 1 means that turns cost the same "
            f"however many episodes there are ({name}).",
            full,
            smoke,
            f"{CROWD}:set_up_linearity",
        ),
        Benchmark(
            f"{name}-memory",
            "bytes an episode",
            f"Growth of resident memory until all 10,000 episodes wait for their third answer, in "
            f"a fresh process each time ({name}). Less is better.",
            full,
            smoke,
            f"{CROWD}:set_up_memory",
        ),
    ]


BENCHMARKS = [*_benchmarks("conductor-ids", IDS), *_benchmarks("conductor-chat", CHAT)]
