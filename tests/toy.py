"""A team, an environment and workflows small enough to know what must come out."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml

from rolecall.agents.agent import Agent, Policy
from rolecall.cli import main
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Episode, Task, Turn
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.workflows.base import workflow
from rolecall.workflows.candidates import play_best

CPU = torch.device("cpu")


def language_model(folder: Path) -> LanguageModel:
    model = load_model(str(folder), device=CPU, dtype=torch.float32)
    return LanguageModel(model, load_tokenizer(str(folder)))


def alike(found: object, wanted: object, *, rounding: float = 1e-5) -> bool:
    """Whether numbers are equal but for the rounding of float32.

    Differences are measured by the largest number, because a sum of large and small terms rounds
    at the scale of the large ones, and in another order on another processor.
    """
    pair = [x.detach() if isinstance(x, torch.Tensor) else torch.tensor(x) for x in (found, wanted)]
    one, other = (x.double() for x in pair)
    assert one.shape == other.shape
    return float((one - other).abs().max()) <= rounding * float(other.abs().max())


def turn(
    agent: str = "solver",
    *,
    task: str = "x",
    episode: str = "e0",
    prompt: Sequence[int] = (5, 6),
    tokens: Sequence[int] = (7, 8),
    rewards: dict[str, float] | None = None,
    path: tuple[int, ...] = (0,),
    policy: str = "p",
    finish: str = "stop",
    advantage: float | None = None,
) -> Turn:
    made = Turn(
        id=f"{episode}/{agent}{'.'.join(map(str, path))}",
        task=task,
        episode=episode,
        agent=agent,
        policy=policy,
        path=path,
        prompt=np.array(prompt, dtype=np.int32),
        tokens=np.array(tokens, dtype=np.int32),
        logprobs=np.full(len(tokens), -1.0, dtype=np.float32),
        versions=np.zeros(len(tokens), dtype=np.int32),
        finish=finish,
        rewards=rewards or {},
    )
    if advantage is not None:
        made.advantages = np.full(len(tokens), advantage, dtype=np.float32)
    return made


def episode(
    attempt: int, turns: list[Turn], rewards: dict[str, float], *, task: str = "x"
) -> Episode:
    return Episode(
        id=f"{task}:{attempt}",
        task=Task(task, "?"),
        attempt=attempt,
        seed=0,
        turns=turns,
        rewards=rewards,
    )


class Letters:
    """Letters whose codes leave the task's remainder by 3: a reward that any bytes can earn."""

    def __init__(
        self, size: int = 64, kinds: int = 3, max_delay_s: float = 0.0, fail_share: float = 0.0
    ) -> None:
        self.size, self.kinds = size, kinds
        self.max_delay_s, self.fail_share = max_delay_s, fail_share

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(f"{split}-{i}", "abc"[i % self.kinds], i % self.kinds, {"source": "letters"})
            for i in range(self.size)
        ]

    def open(self, task: Task, *, seed: int) -> World:
        return LettersWorld(task, seed, self.max_delay_s, self.fail_share)


class LettersWorld(World):
    def __init__(self, task: Task, seed: int, max_delay_s: float, fail_share: float) -> None:
        self.task, self.random, self.max_delay_s = task, random.Random(seed), max_delay_s
        self.fails = self.random.random() < fail_share

    async def pause(self) -> None:
        """A delay that no seed controls."""
        if self.max_delay_s:
            await asyncio.sleep(random.SystemRandom().random() * self.max_delay_s)

    async def fork(self) -> World:
        await self.pause()
        return LettersWorld(self.task, 0, self.max_delay_s, 0.0)

    async def step(self, agent: str, action: str) -> Observation:
        await self.pause()
        return Observation("", reward=len(set(action)) / 20)

    async def score(self, episode: Episode) -> dict[str, float]:
        await self.pause()
        if self.fails:
            raise ConnectionError("the world went away")
        hits = [ord(letter) % 3 == self.task.answer for letter in episode.answer]
        return {"team": sum(hits) / max(1, len(hits))}


@workflow
async def relay(team, task, world):
    """Two parallel speakers, then a third who reads both."""
    async with asyncio.TaskGroup() as group:
        left = group.create_task(_after_pause(world, team.left, task))
        right = group.create_task(_after_pause(world, team.right, task))
    await world.pause()
    return await team.last(task.prompt, left.result(), right.result())


async def _after_pause(world, member, task):
    await world.pause()
    return await member(task.prompt)


@workflow(candidates=True, forks=True)
async def crew(team, task, world, candidates: int = 1):
    """Parallel workers of one role, then one who reads them all; the last word is the answer."""

    async def ask(member, *said):
        await world.pause()
        if candidates == 1:
            return await member(*said)
        return await play_best(member, world, *said, number=candidates)

    drafts = await asyncio.gather(*(ask(w, task.prompt) for w in team.role("worker")))
    return await ask(team.last, task.prompt, *drafts)


@workflow
async def relay_of_three(team, task, world):
    """As `crew`, without candidates of its own."""
    drafts = await asyncio.gather(*(w(task.prompt) for w in team.role("worker")))
    return await team.last(task.prompt, *drafts)


@workflow
async def solo(team, task, world):
    return await team.solver(task.prompt)


def agent(name: str, policy: Policy, **options) -> Agent:
    options.setdefault("sampling", Sampling(max_tokens=8))
    return Agent(name=name, policy=policy, role=name, **options)


def relay_config(folder: Path, **changes) -> dict:
    """Three agents, two policies (one shared), as a config mapping."""
    here = Path(__file__).resolve()
    sampling = {"max_tokens": 8}
    config = {
        "team": {
            "left": {"policy": "a", "sampling": sampling},
            "right": {"policy": "a", "sampling": sampling},
            "last": {"policy": "b", "sampling": sampling},
        },
        "policies": {
            "a": {"base": str(folder), "optimizer": {"lr": 1e-3}},
            "b": {"base": str(folder), "optimizer": {"lr": 1e-3}},
        },
        "workflow": f"{here}:relay",
        "environment": {"name": f"{here}:Letters"},
        "algorithm": "drmas",
        "rollout": {"groups": 3, "group_size": 4},
        "trainer": {"steps": 3, "save_every": 1},
        "evaluation": {"tasks": 2, "samples": 2, "k": 2},
    }
    return changed(config, changes)


def crew_config(folder: Path, **changes) -> dict:
    """Two parallel workers on one policy and one reader on another, rewarded for variety."""
    here = Path(__file__).resolve()
    config = relay_config(folder)
    sampling = {"max_tokens": 8}
    config["team"] = {
        "first": {"policy": "a", "role": "worker", "sampling": sampling},
        "second": {"policy": "a", "role": "worker", "sampling": sampling},
        "last": {"policy": "b", "sampling": sampling},
    }
    config["workflow"] = {"name": f"{here}:crew"}
    config["rewards"] = {f"{here}:wordy": 1.0}
    return changed(config, changes)


# These differ from grpo only in how rewards become advantages, which is numpy on the host.
LIKE_GRPO = {
    "rloo", "pass_at_k", "remax", "dr_grpo", "gigpo", "matpo", "reinforce_pp",
    "reinforce_pp_baseline", "reinforce_baseline", "mgrpo", "dapo", "curriculum",
}  # fmt: skip


EXPERTS = Path(__file__).with_name("experts.jsonl")  # who say one letter, again and again


def algorithm_cases(folder: Path) -> dict[str, dict]:
    """What each algorithm needs in a config, by name."""
    base = str(folder)
    reference = {
        "policies": {
            name: {"base": base, "optimizer": {"lr": 1e-3}, "reference": "initial"}
            for name in ("a", "b")
        }
    }
    adapters = {
        "policies": {
            name: {"base": base, "optimizer": {"lr": lr}, "adapter": {"rank": 4}}
            for name, lr in (("a", 1e-3), ("b", 3e-3))
        }
    }
    past = {
        "team": {"last": {"policy": "b", "sampling": {"max_tokens": 8}, "trainable": False}},
        "policies": {"b": {"base": base, "opponent_pool": {"of": "a", "every": 1, "keep": 2}}},
    }
    crossed = {
        "team": {
            "last": {
                "policy": "b", "sampling": {"max_tokens": 8},
                "cross_policy": {"policy": "earlier", "share": 0.5},
            }
        },
        "policies": {"earlier": {"base": base, "opponent_pool": {"of": "b", "every": 1}}},
    }  # fmt: skip
    replayed = {"workflow": f"{Path(__file__).resolve()}:relay_of_three"}
    team = {"critics": {"team": {"base": base, "optimizer": {"lr": 1e-3}}}}
    # Tasks that were played are drawn again: a run that forgets them goes another way.
    again = {"prior": 0.0, "floor": 0.001}
    several = {"name": "drmas", "epochs": 2, "minibatches": 2, "entropy": 0.01}
    return {
        "grpo": {"algorithm": "grpo"},
        "grpo with kl": {"algorithm": {"name": "grpo", "kl": 0.1}, **reference},
        "several steps": {"algorithm": several},
        "adapters": {"algorithm": "drmas", **adapters},
        "separate weights": {"algorithm": "drmas", "engine": {"separate_weights": True}},
        "rloo": {"algorithm": "rloo"},
        "pass_at_k": {"algorithm": {"name": "pass_at_k", "k": 2}},
        "remax": {"algorithm": "remax"},
        "dr_grpo": {"algorithm": "dr_grpo"},
        "gspo": {"algorithm": "gspo"},
        "gigpo": {"algorithm": "gigpo"},
        "matpo": {"algorithm": "matpo"},
        "agentrl": {"algorithm": "agentrl", **crossed},
        "leader_only": {"algorithm": "leader_only", "workflow": {"candidates": 8}},
        "reinforce_pp": {"algorithm": "reinforce_pp", **reference},
        "reinforce_pp_baseline": {"algorithm": "reinforce_pp_baseline", **reference},
        "reinforce_baseline": {"algorithm": "reinforce_baseline"},
        "mgrpo": {"algorithm": "mgrpo"},
        "dapo": {"algorithm": "dapo"},
        "curriculum": {"algorithm": "dapo", "rollout": {"curriculum": again}},
        "ppo_critic": {
            "algorithm": "ppo_critic",
            "critics": {"token": {"base": base, "optimizer": {"lr": 1e-3}}},
        },
        "ppo": {"algorithm": "ppo", "critics": {"agent": {"optimizer": {"lr": 1e-2}}}},
        "a2c": {"algorithm": "a2c", "critics": {"agent": {}}},
        "maporl": {
            "algorithm": {"name": "maporl", "a3": 0.5},
            "critics": {"agent": {"heads": 2}},
            **reference,
        },
        "cory": {"algorithm": "cory", "critics": {"agent": {}}, **reference},
        "marft": {"algorithm": {"name": "marft", "round_robin": 1}, **team},
        "marft_token": {"algorithm": "marft_token", "critics": {"agent": {}}},
        "target_kl": {"algorithm": {"name": "drmas", "epochs": 4, "target_kl": 1e-4}},
        "mappo": {"algorithm": "mappo", **team},
        "happo": {"algorithm": "happo", **team},
        "vdn": {"algorithm": "vdn", "critics": {"mixer": {"optimizer": {"lr": 1e-3}}}},
        "qmix": {
            "algorithm": "qmix",
            "critics": {"mixer": {"base": base, "optimizer": {"lr": 1e-3}}},
        },
        "vdn_value": {
            "algorithm": {"name": "vdn_value", "candidates": 2, "copy_every": 20, "distil": True},
            "critics": {"mixer": {"optimizer": {"lr": 1e-3}}},
            **replayed,
        },
        "qmix_value": {
            "algorithm": {"name": "qmix_value", "candidates": 2, "copy_every": 20, "distil": True},
            "critics": {"mixer": {"base": base, "optimizer": {"lr": 1e-3}}},
            **replayed,
        },
        "at_grpo": {"algorithm": "at_grpo", "workflow": {"candidates": 3}},
        "earlier opponents": {"algorithm": "drmas", **past},
        "counterfactual": {"algorithm": {"name": "counterfactual", "fraction": 0.5}},
        # Candidates that were cut are worth 0 alike: longer ones end by themselves now and then.
        "dpo": {
            "algorithm": "dpo",
            "workflow": {"candidates": 3},
            **reference,
            "team": {"last": {"policy": "b", "sampling": {"max_tokens": 64}}},
        },
        "sft": {"algorithm": {"name": "sft", "threshold": 0.3}},
        "read": {
            "algorithm": {"name": "read", "epsilon": 1e-3, "max_refine": 2, "train": True},
            **team,
        },
        "ma_airl": {
            "algorithm": {"name": "ma_airl", "experts": str(EXPERTS)},
            "critics": {"discriminator": {"base": base, "optimizer": {"lr": 1e-2}}},
        },
        "ma_airl with mappo": {
            "algorithm": {"name": "ma_airl", "experts": str(EXPERTS), "inner": "mappo"},
            "critics": {
                "discriminator": {"base": base, "optimizer": {"lr": 1e-2}},
                **team["critics"],
            },
        },
    }


def solo_config(folder: Path, **changes) -> dict:
    config = relay_config(folder)
    here = Path(__file__).resolve()
    config["team"] = {"solver": {"policy": "a", "sampling": {"max_tokens": 8}}}
    config["policies"] = {"a": config["policies"]["a"]}
    config["workflow"] = f"{here}:solo"
    return changed(config, changes)


def changed(config: dict, changes: dict) -> dict:
    for key, value in changes.items():
        old = config.get(key, {})
        both = isinstance(value, dict) and isinstance(old, dict)
        config[key] = {**old, **value} if both else value
    return config


class Unopened:
    """A toolkit that no episode can open."""

    async def check(self) -> None:
        raise OSError("its door is shut")

    def open(self, world: World, *, seed: int):
        raise OSError("its door is shut")


async def wordy(episode: Episode, world: World) -> dict[str, float]:
    """A reward that random weights can earn: distinct letters said."""
    return {"team": len(set("".join(turn.text for turn in episode.turns))) / 20}


async def alternate(episode: Episode, world: World) -> dict[str, float]:
    """A reward of every second attempt, so that each group has a signal."""
    return {"team": float(episode.attempt % 2)}


def command(*arguments: object) -> int:
    """Run `rolecall ...` in this process and return its exit status."""
    sys.argv = ["rolecall", *map(str, arguments)]
    try:
        main.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def write(path: Path, config: dict) -> Path:
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
