"""Answers what a run asks of one kind of learner, before there is a learner and to make it.

A config is checked without PyTorch and what learners import: methods that need those import them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rolecall.config import registry
from rolecall.config.learners import OwnLearnerConfig
from rolecall.config.schema import Config
from rolecall.config.user_code_location import UserCallable
from rolecall.core.errors import ConfigError, as_config_error
from rolecall.core.json_types import Options

if TYPE_CHECKING:
    from rolecall.core.interfaces.learner import Learner
    from rolecall.learners.inputs import LearnerInputs
    from rolecall.learners.memory import StoredWeights
    from rolecall.models.batch_memory import Activations
    from rolecall.models.language_model import LanguageModel
    from rolecall.models.memory_needs import Need
    from rolecall.models.sizes import Size


class RankedLearners(Protocol):
    """The ranks of a run, which policies may share."""

    def learner(self, name: str, *, total_updates: int, head: bool) -> Learner:
        """Return the learner of a policy. Raises ConfigError, RankError."""
        ...


@dataclass(frozen=True, slots=True)
class LearnerRequest:
    """Holds what a run needs of the learner of a policy, and what it has to make it of."""

    total_updates: int  # optimizer steps of the whole run
    needs_value_head: bool
    models: dict[str, LanguageModel]  # by policy: those of this process
    ranks: RankedLearners


class LearnerBackend:
    """One kind of learner, for one policy of a config."""

    def __init__(self, config: Config, policy: str) -> None:
        self.config, self.policy = config, policy
        self.section = config.get_learner(policy)

    @property
    def key(self) -> str:
        """Return the config key of the section."""
        return self.config.get_section_key(self.policy, "learner")

    def check(self) -> Iterator[str]:
        """Yield what does not fit, whatever machine it is: `KEY: what is wrong; what to write`."""
        if (
            self.policy not in self.config.trained_policies
            and self.config.policies[self.policy].learner
        ):
            yield (
                f"{self.key} has no effect: no agent that speaks with it is trainable; "
                "remove it, and say where it lives with device"
            )

    def devices(self, *, auto: str) -> list[str]:
        """Return the device of each process; `auto`: the device that this name stands for."""
        from rolecall.placement.devices import learner_devices

        return learner_devices(self.config, self.policy, auto=auto)

    def shares(self, *, auto: str) -> list[tuple[str, float]]:
        """Return each device with its share of every weight."""
        devices = self.devices(auto=auto)
        each = 1 / len(devices) if self.section.is_sharded else 1.0
        return [(device, each) for device in devices]

    def memory(
        self, weights: StoredWeights, size: Size | None, *, activations: Activations
    ) -> Iterator[Need]:
        """Yield what training takes on one device beside the weights. Raises ConfigError."""
        from rolecall.learners.memory import batch_needs, gathered_needs, optimizer_needs

        if size is not None and weights.share < 1:
            yield gathered_needs(self.policy, weights, size, self.section.dtype)
        if self.policy in self.config.trained_policies:
            yield from optimizer_needs(self.config, self.policy, weights)
            yield from batch_needs(self.config, self.policy, weights, size, activations=activations)

    def make(self, request: LearnerRequest) -> Learner:
        """Make the learner. Raises ConfigError, and RankError where ranks do not start."""
        raise NotImplementedError

    def check_options(self) -> Options:
        """Return the options of a learner of your own. Raises ConfigError."""
        return {}


class LocalLearnerBackend(LearnerBackend):
    """A learner in the trainer's process."""

    def make(self, request: LearnerRequest) -> Learner:
        from rolecall.learners.local import LocalLearner

        return LocalLearner(**self._inputs(request).as_arguments())

    def _inputs(self, request: LearnerRequest) -> LearnerInputs:
        from rolecall.learners.inputs import LearnerInputs

        config, section = self.config, self.section
        model, policy = request.models[self.policy], config.policies[self.policy]
        critic = config.critics["agent"] if request.needs_value_head else None
        assert policy.optimizer is not None, "the config fills it in"
        return LearnerInputs(
            model=model,
            optimizer=policy.optimizer,
            total_updates=request.total_updates,
            reference=self._load_reference(model),
            head=None if critic is None else critic.optimizer,
            heads=1 if critic is None else critic.heads,
            checkpoint_activations=section.checkpoint_activations,
            share_prefixes=section.share_prefixes,
            offloads=section.offload,
        )

    def _load_reference(self, model: LanguageModel) -> LanguageModel | Literal["base"] | None:
        policy = self.config.policies[self.policy]
        base = policy.reference
        if base is None:
            return None
        if base == "initial":
            return "base" if model.adapter is not None else model.frozen_copy()
        from rolecall.models.configured import load_configured, read_tokenizer

        key, device = f"policies.{self.policy}.reference", self.config.get_device(self.policy)
        tokenizer = read_tokenizer(base, key=key, chat_template=policy.chat_template)
        reference = load_configured(base, device, self.section.dtype, key=key, tokenizer=tokenizer)
        if reference.tokenizer.get_vocab() != model.tokenizer.get_vocab():
            raise ConfigError(f"{key}: {base!r} has another vocabulary than the policy")
        return reference


class LearnerClassBackend(LocalLearnerBackend):
    """A `Learner` class of the user's, made from `LearnerInputs` and from `learner.options`."""

    section: OwnLearnerConfig

    def __init__(self, config: Config, policy: str, learner: UserCallable) -> None:
        super().__init__(config, policy)
        self._learner = learner

    def make(self, request: LearnerRequest) -> Learner:
        inputs, options = self._inputs(request), self.check_options()
        with as_config_error(f"{self.key}.options: "):
            learner: Learner = self._learner(inputs, **options)
        return learner

    def check_options(self) -> Options:
        key, options = f"{self.key}.options", self.section.options
        return registry.check_options(self._learner, options, key=key, skip=1)


class RankedBackend(LearnerBackend):
    """A learner on ranks: each has the whole model, or with FSDP2 a share of every weight."""

    def check(self) -> Iterator[str]:
        yield from super().check()
        section, sharers = self.section, self.section.row_sharers
        if section.num_ranks % sharers:
            yield (
                f"{self.key}.context_parallel: {sharers} does not divide the {section.num_ranks} "
                "ranks; write a number that does"
            )
        if self.policy not in self.config.trained_policies:
            return
        for critic in sorted({"mixer", "discriminator"} & self.config.critics.keys()):
            yield (
                f"{self.key}.name: critics.{critic} reads the model of {self.policy}, which must "
                "be in this process; write local"
            )

    def make(self, request: LearnerRequest) -> Learner:
        return request.ranks.learner(
            self.policy, total_updates=request.total_updates, head=request.needs_value_head
        )


def learner_backend(config: Config, policy: str) -> LearnerBackend:
    """Return the backend of a policy's learner. Raises ConfigError for an unknown name."""
    key = config.get_section_key(policy, "learner")
    kind = registry.resolve("learner", config.get_learner(policy).name, key=f"{key}.name")
    if isinstance(kind, type) and issubclass(kind, LearnerBackend):
        return kind(config, policy)
    return LearnerClassBackend(config, policy, kind)
