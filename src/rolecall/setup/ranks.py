"""Starts the ranks that policies are trained on; policies with equal sections share them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from rolecall.cluster.pool import Pool, Seat
from rolecall.cluster.ranks import RankActors
from rolecall.cluster.session import RaySession
from rolecall.config.learners import RankedLearnerConfig
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.seeding import derive_seed
from rolecall.learners.ranks import torchrun
from rolecall.learners.ranks.group import RankGroup
from rolecall.learners.ranks.learner import RankedLearner
from rolecall.learners.ranks.spec import LearnerSpec
from rolecall.models.devices import device_named
from rolecall.models.language_model import get_key_value_heads
from rolecall.models.loading import load_tokenizer
from rolecall.models.sizes import get_size
from rolecall.placement.gpu_assignment import OWN, assign_gpus

# How many ranks there are and the device of the first, or a pool's name and their GPUs there.
Place = tuple[int | str | tuple[int, ...], ...]


class Ranks:
    """The groups of ranks of a run, by their place. They start while models are loaded."""

    def __init__(
        self,
        config: Config,
        session: RaySession | None = None,
        pools: Mapping[str, Pool] = MappingProxyType({}),
    ) -> None:
        """On the machines of `session` and, if it has GPUs, in its `pools`; or on this machine.

        Raises ConfigError, RankError.
        """
        self.config, self.session, self.pools = config, session, pools
        self._groups: dict[Place, RankGroup] = {}
        names = [name for name in sorted(config.trained_policies) if config.is_ranked(name)]
        self._sharers = {name: _context_parallel(config, name) for name in names}
        for name in names:
            _check_vocabularies(config, name)
        try:
            for name in names:
                self._group(name)
        except BaseException:
            self.close()
            raise

    def learner(self, name: str, *, total_updates: int, head: bool) -> RankedLearner:
        """Return the learner of a policy. Raises ConfigError, RankError.

        `head`: whether its algorithm needs a value head.
        """
        spec = self._spec(name, total_updates=total_updates, head=head)
        pool = self.pools.get(self.config.get_pool(name) or OWN)
        together = pool if self.config.policies[name].colocate else None
        return RankedLearner(self._group(name), name, spec, place=together)

    def _group(self, name: str) -> RankGroup:
        section = self.config.get_learner(name)
        assert isinstance(section, RankedLearnerConfig)
        if self.session is not None:
            return self._actors(self.session, name, section.ranks)
        devices = rank_devices(self.config.get_device(name), section.ranks)
        key = (section.ranks, devices[0])
        if key not in self._groups:
            self._groups[key] = RankGroup(
                section.ranks,
                device_of=devices.__getitem__,
                start_timeout_s=section.start_timeout_s,
                threads=max(1, torch.get_num_threads() // section.ranks),
            )
        return self._groups[key]

    def _actors(self, session: RaySession, name: str, size: int) -> RankGroup:
        """Ranks in processes of the cluster. Raises ConfigError where it has no room for them."""
        device = session.actor_device(self.config.get_device(name))
        seats: list[Seat | None] = [None] * size
        key: Place = (size, device)
        if self.pools:
            mine = assign_gpus(self.config)[name]
            seats = [Seat(self.pools[mine.pool], (gpu,)) for gpu in mine.ranks]
            key = (mine.pool, mine.ranks)
        if key not in self._groups:
            self._groups[key] = RankGroup(
                size,
                device_of=lambda rank: device,
                start_timeout_s=session.section.start_timeout_s,
                threads=max(1, torch.get_num_threads() // size),
                hosts=RankActors(session, f"rank-of-{name}", seats),
                heartbeat_s=session.section.heartbeat_s,
            )
        return self._groups[key]

    def close(self) -> None:
        for group in self._groups.values():
            group.close()

    def _spec(self, name: str, *, total_updates: int, head: bool) -> LearnerSpec:
        config, policy = self.config, self.config.policies[name]
        section = config.get_learner(name)
        assert policy.optimizer is not None, "the config fills it in"
        return LearnerSpec(
            kind="fsdp" if section.is_sharded else "replicated",
            base=policy.base,
            chat_template=policy.chat_template,
            adapter=policy.adapter,
            seed=derive_seed(config.trainer.seed, "adapters") % 2**31,
            optimizer=policy.optimizer,
            total_updates=total_updates,
            reference=policy.reference,
            head=config.critics["agent"].optimizer if head else None,
            heads=config.critics["agent"].heads if head else 1,
            dtype=section.dtype,
            checkpoint_activations=section.checkpoint_activations,
            share_prefixes=section.share_prefixes,
            offloads=section.offload,
            context_parallel=self._sharers[name],
        )


def rank_devices(name: str, ranks: int) -> list[str]:
    """Return a GPU for each rank, from `name` on, or the CPU; raises ConfigError for too few."""
    try:
        first = device_named(name)
    except ValueError as error:
        raise ConfigError(f"learner.device: {error}") from error
    if first.type == "cpu":
        return ["cpu"] * ranks
    if first.type != "cuda":
        raise ConfigError(f"learner.device: ranks compute on cuda or cpu, not on {first.type}")
    if torchrun.size() is not None:  # which gives each process the GPU of its own number
        return ["cuda"] * ranks
    begin, there = first.index or 0, torch.cuda.device_count()
    if begin + ranks > there:
        raise ConfigError(
            f"learner.ranks: {ranks} ranks from cuda:{begin} on need {begin + ranks} GPUs and this "
            f"machine has {there}; write at most {there - begin}, or another learner.device"
        )
    return [f"cuda:{begin + rank}" for rank in range(ranks)]


def _context_parallel(config: Config, name: str) -> int:
    """Return how many ranks share a row. Raises ConfigError where they cannot share its heads."""
    section = config.get_learner(name)
    if section.row_sharers == 1:
        return 1
    base, sharers = config.policies[name].base, section.row_sharers
    try:
        size = get_size(base)
    except ValueError as error:
        raise ConfigError(f"policies.{name}.base: {error}") from error
    heads, _ = get_key_value_heads(size.model.config)
    for what, number in (("attention", size.model.config.num_attention_heads), ("key", heads)):
        if number % sharers:
            raise ConfigError(
                f"learner.context_parallel: {sharers} ranks cannot share the {number} {what} "
                f"heads of {base!r}; write a number that divides them"
            )
    return sharers


def _check_vocabularies(config: Config, name: str) -> None:
    """Check that policy and reference have the same tokens; raises ConfigError otherwise."""
    policy = config.policies[name]
    if policy.reference in (None, "initial"):
        return
    key = f"policies.{name}.reference"
    try:
        vocabularies = [
            load_tokenizer(base, chat_template=policy.chat_template).get_vocab()
            for base in (policy.base, policy.reference)
        ]
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    if vocabularies[0] != vocabularies[1]:
        raise ConfigError(f"{key}: {policy.reference!r} has another vocabulary than the policy")
