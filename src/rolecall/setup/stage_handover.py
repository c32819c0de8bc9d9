"""Carries the weights of policies from one stage of a run to the next.

Whole weights become the base of the next stage: its references and its engines begin with them too.
Adapters, and moments where they are asked for, are loaded when the stage begins. A stage that names
another base for a policy starts anew from that. Critics go on where a later stage has one of the
same name, base and class for the same agents, and value heads where there are as many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.config.schema import Adapter, Config, StageConfig
from rolecall.core.errors import ConfigError, first_line
from rolecall.core.interfaces.critic import Critic
from rolecall.learners.optimizer import Stepper
from rolecall.setup.validate_options import Problems
from rolecall.storage.checkpoint import CRITIC, critics_in

if TYPE_CHECKING:
    from rolecall.training.run import Run


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights and moments that the last stage to train a policy left."""

    stage: str
    base: str  # that its config named, before anything was carried
    adapter: Adapter | None
    folder: Path  # of the policy in the checkpoint
    whole: Path | None  # folder of whole weights, which are the base of its adapter if it has one
    heads: int | None  # value heads that its stage may have had


@dataclass(frozen=True, slots=True)
class Expecting:
    """A critic that a stage left."""

    stage: str
    name: str  # in `critics` of its config
    base: str | None
    team: list[str]
    kind: str  # class
    folder: Path


class Carried:
    """Holds what has been trained so far, by policy."""

    def __init__(self) -> None:
        self.trained: dict[str, Trained] = {}
        self.critics: dict[str, Expecting] = {}  # by their folders in a checkpoint

    def problems(self, config: Config, stage: StageConfig) -> Problems:
        """Yield the reasons why a stage cannot begin with what was trained before it."""
        for name, last in self._carried_policies(config).items():
            policy, key = config.policies[name], f"policies.{name}"
            is_trained = name in config.trained_policies and stage.kind == "train"
            moments = is_trained and stage.optimizer == "carried"
            if last.adapter is not None and policy.adapter != last.adapter:
                yield (
                    f"{key}.adapter: stage {last.stage!r} trained another adapter of this policy; "
                    "write the same, or another base"
                )
            elif moments and policy.adapter != last.adapter:
                yield (
                    f"{key}.adapter: stage {last.stage!r} trained all weights, and their moments "
                    "do not fit an adapter; write optimizer: fresh"
                )
            elif moments or last.adapter is not None:
                yield from _cannot_load(config, name, last)

    def apply(self, config: Config) -> None:
        """Make whole weights the base of their policies, and of pools that play them."""
        declared = {name: policy.base for name, policy in config.policies.items()}
        for name, last in self._carried_policies(config).items():
            if last.whole is not None:
                config.policies[name].base = str(last.whole)
        for name, policy in config.policies.items():
            pool = policy.opponent_pool
            if pool is not None and declared.get(pool.of) == declared[name]:
                policy.base = config.policies[pool.of].base

    def begin(self, run: Run, config: Config, stage: StageConfig) -> list[str]:
        """Load what is no base. `config`: as the stage declared it, before `apply`.

        Returns a line for each critic: what it goes on from, or why it begins anew.
        """
        moments = stage.optimizer == "carried"
        for name, last in self._carried_policies(config).items():
            learner = run.learners.get(name)
            try:
                if learner is not None and (last.adapter is not None or moments):
                    learner.take_over(last.folder, moments=moments)
                    if last.adapter is not None and config.policies[name].reference == "initial":
                        asyncio.run(learner.refresh_reference())  # else it is the base without it
                elif last.adapter is not None and learner is None:
                    run.publisher.models[name].load(last.folder)  # type: ignore[attr-defined]
            except (ValueError, KeyError, OSError) as error:
                raise ConfigError(f"policies.{name}: {error}") from error
        return [
            *self._begin_heads(run, config, moments),
            *self._begin_critics(run, config, moments),
        ]

    def _begin_heads(self, run: Run, config: Config, moments: bool) -> Iterator[str]:
        for name, last in self._carried_policies(config).items():
            learner, section = run.learners.get(name), config.critics.get("agent")
            if learner is None or section is None or last.heads is None:
                continue
            if all(algorithm.critic != "agent" for algorithm in run.get_algorithms(name).values()):
                continue
            if section.heads != last.heads:
                why = f"begins anew: stage {last.stage!r} had {last.heads} heads"
            elif learner.take_over_head(last.folder, moments=moments):
                why = f"goes on from stage {last.stage!r}"
            else:
                why = f"begins anew: stage {last.stage!r} left no head that this learner can read"
            yield f"critics.agent of policy {name} {why}"

    def _begin_critics(self, run: Run, config: Config, moments: bool) -> Iterator[str]:
        for folder, critic in run.critics.items():
            name, agent = folder.removeprefix(CRITIC).split(".")
            critics = [one for one in self.critics.values() if one.name == name]
            if not critics:
                continue
            last = self.critics.get(folder, critics[-1])
            if last.base != config.critics[name].base:
                why = f"begins anew: stage {last.stage!r} had another base"
            elif folder not in self.critics or last.team != list(config.team):
                why = f"begins anew: stage {last.stage!r} had it for other agents"
            elif last.kind != type(critic).__qualname__:
                why = f"begins anew: stage {last.stage!r} had one of another kind, {last.kind}"
            else:
                _go_on(critic, last, name, moments=moments)
                why = f"goes on from stage {last.stage!r}"
            yield f"critics.{name} of {agent} {why}"

    def add(self, config: Config, stage: str, checkpoint: Path) -> None:
        """Note that a stage has trained. `config`: as it declared it."""
        for name in sorted(config.trained_policies):
            policy, before = config.policies[name], self._carried_policies(config).get(name)
            folder = checkpoint.resolve() / name
            whole = folder if policy.adapter is None else before.whole if before else None
            heads = config.critics["agent"].heads if "agent" in config.critics else None
            self.trained[name] = Trained(stage, policy.base, policy.adapter, folder, whole, heads)
        team = list(config.team)
        for folder_name, kind in critics_in(checkpoint).items():
            name = folder_name.removeprefix(CRITIC).partition(".")[0]
            where, base = checkpoint.resolve() / folder_name, config.critics[name].base
            self.critics[folder_name] = Expecting(stage, name, base, team, kind, where)

    def _carried_policies(self, config: Config) -> dict[str, Trained]:
        """Return the policies of a config that go on from what was trained."""
        return {
            name: self.trained[name]
            for name, policy in config.policies.items()
            if name in self.trained and self.trained[name].base == policy.base
        }


def _go_on(critic: Critic, last: Expecting, name: str, *, moments: bool) -> None:
    try:
        critic.load(last.folder)
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"critics.{name}: that of stage {last.stage!r} does not fit: {first_line(error)}; give "
            "this stage another base for it, and it begins anew"
        ) from error
    stepper = getattr(critic, "stepper", None)  # of a critic of one's own, what it has
    if isinstance(stepper, Stepper):
        stepper.begin(moments=moments)


def _cannot_load(config: Config, name: str, last: Trained) -> Problems:
    """Yield the problems of a policy that begins with an adapter, or with moments."""
    if name in config.trained_policies:
        if config.get_learner(name).is_sharded:
            yield (
                f"policies.{name}.learner: fsdp cannot go on from the adapter or the moments of "
                f"stage {last.stage!r}; write replicated"
            )
        return
    engine = config.get_engine(name)
    if engine.name != "local" or engine.separate_weights:
        yield (
            f"policies.{name}.engine: only the local engine, without separate_weights, samples an "
            f"adapter of stage {last.stage!r} that this stage does not train; write that, or train"
        )
