"""Finds what would make a run fit into the memory there is, and what each change costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from rolecall.config.schema import Config
from rolecall.memory.estimate import estimate_memory, peaks


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change of a config, and the most that a device holds then."""

    change: str  # overrides, as they are written on the command line
    cost: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Change:
    overrides: list[str]
    cost: str

    @property
    def text(self) -> str:
        return " ".join(self.overrides)


def remedies(config: Config, *, auto: str, gpus: int) -> list[Remedy]:
    """Return what each change alone would come to, the cheapest first, without those that do not
    help.
    """
    before = _most(config, auto)
    suggestions = []
    for change in _changes(config, gpus):
        after = _most(_changed(config, [change]), auto)
        if after < before:
            suggestions.append(Remedy(change.text, change.cost, after))
    return suggestions


def enough(config: Config, *, auto: str, gpus: int, room: int) -> list[Remedy]:
    """Return changes that together make the run fit, none of which can be left out.

    The cheapest are taken first, and left out again where later ones make them needless. Returns []
    if all changes together do not fit.
    """
    chosen: list[_Change] = []
    for change in _changes(config, gpus):
        if _most(_changed(config, chosen), auto) <= room:
            break
        chosen.append(change)
    if _most(_changed(config, chosen), auto) > room:
        return []
    for change in list(chosen):
        rest = [one for one in chosen if one is not change]
        if _most(_changed(config, rest), auto) <= room:
            chosen = rest
    return [
        Remedy(one.text, one.cost, _most(_changed(config, chosen[: number + 1]), auto))
        for number, one in enumerate(chosen)
    ]


def _changes(config: Config, gpus: int) -> Iterator[_Change]:
    """Yield the changes; those that keep what is learned come first."""
    yield _Change(
        _in_learners(config, "checkpoint_activations=true"), "an update takes 1.3 times as long"
    )
    yield _Change(_in_learners(config, "offload=true"), "moments and masters travel at each update")
    if config.learner.tokens_per_batch > 1024:
        yield _Change(
            _in_learners(config, "tokens_per_batch=1024"),
            "more and smaller passes, where no row is longer",
        )
    if gpus > 1:
        yield _Change(
            _in_learners(config, "name=fsdp", f"ranks={gpus}"), "weights travel between the GPUs"
        )
    yield _Change(
        _in_learners(config, "dtype=bfloat16"),
        "sampler and learner differ by rounding, which is corrected",
    )
    limits = {name: agent.sampling.max_tokens for name, agent in config.team.items()}
    if (longest := max(limits.values())) > 256:
        shorter = [
            f"team.{name}.sampling.max_tokens={longest // 2}"
            for name, limit in limits.items()
            if limit > longest // 2
        ]
        yield _Change(shorter, "longer answers are cut")
    whole = [name for name in config.policies if _trains_whole_weights(config, name)]
    adapted = [override for name in whole for override in _adapt(config, name)]
    if adapted:
        yield _Change(adapted, "adapters are trained, not all weights")
    rounded = [
        override
        for name in config.policies
        if _quantizable(config, name)
        for override in [
            *(_adapt(config, name) if name in whole else []),
            f"policies.{name}.quantization=4bit",
        ]
    ]
    if rounded:
        also = "adapters are trained, and " if set(adapted) & set(rounded) else ""
        yield _Change(rounded, f"{also}the base is rounded, so it answers otherwise")


def _trains_whole_weights(config: Config, name: str) -> bool:
    return name in config.trained_policies and config.policies[name].adapter is None


def _adapt(config: Config, name: str) -> list[str]:
    """Return the overrides that train an adapter; its reference is its own base."""
    own = [f"policies.{name}.adapter.rank=32"]
    if config.policies[name].reference not in (None, "initial"):
        own.append(f"policies.{name}.reference=initial")
    return own


def _quantizable(config: Config, name: str) -> bool:
    """Return whether its base is frozen, or can be beside an adapter, and is in this process."""
    policy = config.policies[name]
    in_process = config.get_engine(name).name == "local"
    trained = name in config.trained_policies
    return (
        in_process
        and policy.quantization == "none"
        and not policy.base.startswith("tiny:")
        and not (trained and config.is_ranked(name))
        and (trained or policy.adapter is not None or policy.opponent_pool is None)
    )


def _in_learners(config: Config, *values: str) -> list[str]:
    """Return overrides of the config's learner, and of each that a policy has of its own."""
    sections = ["learner"]
    sections += [f"policies.{name}.learner" for name, p in config.policies.items() if p.learner]
    return [f"{section}.{value}" for section in sections for value in values]


def _changed(config: Config, changes: list[_Change]) -> Config:
    overrides = [override for change in changes for override in change.overrides]
    merged = OmegaConf.merge(
        OmegaConf.create(config.model_dump(mode="json"), flags={"allow_objects": True}),
        OmegaConf.from_dotlist(overrides),
    )
    data: Any = OmegaConf.to_container(merged, resolve=False)
    return Config.model_validate(data)


def _most(config: Config, auto: str) -> int:
    """Return the most that a device holds; what the computer keeps for devices does not count."""
    return max(
        (p.num_bytes for p in peaks(estimate_memory(config, auto=auto)) if p.is_device), default=0
    )
