"""Finds what would make a run fit into the memory there is, and what each change costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.schema import Config
from rolecall.setup.memory import memory_of, peaks

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change of a config, and the most that a device holds then."""

    change: str  # as on the command line
    cost: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Change:
    change: str
    cost: str
    apply: Callable[[Data], None]


def remedies(config: Config, *, auto: str, gpus: int) -> list[Remedy]:
    """What each change alone would come to, the cheapest first; those without effect left out."""
    before = _most(config, auto)
    found = []
    for change in _changes(config, gpus):
        after = _most(_changed(config, [change]), auto)
        if after < before:
            found.append(Remedy(change.change, change.cost, after))
    return found


def enough(config: Config, *, auto: str, gpus: int, room: int) -> list[Remedy]:
    """Changes that make the run fit together, none of which can be left out; [] if all do not.

    The cheapest are taken first, and left out again where later ones make them needless.
    """
    taken: list[_Change] = []
    for change in _changes(config, gpus):
        if _most(_changed(config, taken), auto) <= room:
            break
        taken.append(change)
    if _most(_changed(config, taken), auto) > room:
        return []
    for change in list(taken):
        rest = [one for one in taken if one is not change]
        if _most(_changed(config, rest), auto) <= room:
            taken = rest
    return [
        Remedy(one.change, one.cost, _most(_changed(config, taken[: number + 1]), auto))
        for number, one in enumerate(taken)
    ]


def _changes(config: Config, gpus: int) -> Iterator[_Change]:
    """Those that keep what is learned come first."""
    yield _Change(
        "learner.checkpoint_activations=true", "an update takes 1.3 times as long",
        _in_learners(checkpoint_activations=True),
    )  # fmt: skip
    yield _Change(
        "learner.offload=true", "moments and masters travel at each update",
        _in_learners(offload=True),
    )  # fmt: skip
    budget = config.learner.tokens_per_batch
    if budget > 1024:
        yield _Change(
            "learner.tokens_per_batch=1024", "more and smaller passes, where no row is longer",
            _in_learners(tokens_per_batch=1024),
        )  # fmt: skip
    if gpus > 1:
        yield _Change(
            f"learner=fsdp learner.ranks={gpus}", "weights travel between the GPUs",
            _in_learners(name="fsdp", ranks=gpus),
        )  # fmt: skip
    yield _Change(
        "learner.dtype=bfloat16", "sampler and learner differ by rounding, which is corrected",
        _in_learners(dtype="bfloat16"),
    )  # fmt: skip
    longest = max(agent.sampling.max_tokens for agent in config.team.values())
    if longest > 256:
        yield _Change(
            f"team.*.sampling.max_tokens={longest // 2}", "longer answers are cut",
            _shorter(longest // 2),
        )  # fmt: skip
    if any(config.policies[name].adapter is None for name in config.trained):
        yield _Change(
            "policies.*.adapter.rank=32", "adapters are trained, not all weights", _adapted
        )
    if any(_quantizable(config, name) for name in config.policies):
        yield _Change(
            "policies.*.quantization=4bit", "the base is rounded, so it answers otherwise",
            _quantized({name for name in config.policies if _quantizable(config, name)}),
        )  # fmt: skip


def _quantizable(config: Config, name: str) -> bool:
    """Whether its base is frozen, as it is or by the remedy above, and computes in this process."""
    policy = config.policies[name]
    in_process = isinstance(config.engine_of(name), LocalEngineConfig)
    trained = name in config.trained
    return (
        in_process
        and policy.quantization == "none"
        and not policy.base.startswith("tiny:")
        and not (trained and config.is_ranked(name))
        and (trained or policy.adapter is not None or policy.opponent_pool is None)
    )


def _changed(config: Config, changes: list[_Change]) -> Config:
    data = deepcopy(config.model_dump(mode="json"))
    for change in changes:
        change.apply(data)
    return Config.model_validate(data)


def _most(config: Config, auto: str) -> int:
    """The most that a device holds; what the computer keeps for devices does not count."""
    return max((p.num_bytes for p in peaks(memory_of(config, auto=auto)) if p.is_device), default=0)


def _in_learners(**values: Any) -> Callable[[Data], None]:
    def apply(data: Data) -> None:
        sections = [data, *data["policies"].values()]
        for section in sections:
            if section.get("learner"):
                section["learner"] |= values

    return apply


def _shorter(most: int) -> Callable[[Data], None]:
    def apply(data: Data) -> None:
        for agent in data["team"].values():
            agent["sampling"]["max_tokens"] = min(most, agent["sampling"]["max_tokens"])

    return apply


def _quantized(names: set[str]) -> Callable[[Data], None]:
    def apply(data: Data) -> None:
        trained = {agent["policy"] for agent in data["team"].values() if agent["trainable"]}
        for name in names:
            policy = data["policies"][name]
            if policy["adapter"] or name not in trained:
                policy["quantization"] = "4bit"

    return apply


def _adapted(data: Data) -> None:
    trained = {agent["policy"] for agent in data["team"].values() if agent["trainable"]}
    for name in trained:
        policy = data["policies"][name]
        policy["adapter"] = policy["adapter"] or {"rank": 32, "alpha": 64.0}
        policy["reference"] = policy["reference"] and "initial"
