"""Makes all that has weights: models, references, learners, critics."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from rolecall.agents.agent import Agent
from rolecall.agents.chat_template import Tokenizer
from rolecall.algorithms.base import Algorithm
from rolecall.config.schema import Adapter, Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.critic import Critic, Discriminator
from rolecall.core.interfaces.learner import Learner
from rolecall.core.seeding import derive_seed
from rolecall.critics.inputs import CriticInputs
from rolecall.demonstrations.offline_data import experts
from rolecall.learners.backend import LearnerRequest, learner_backend
from rolecall.models.configured import load_configured, read_tokenizer
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import with_adapters
from rolecall.setup.plan import Plan
from rolecall.setup.ranks import Ranks


def load_tokenizers(config: Config) -> dict[str, Tokenizer]:
    """Load the tokenizers by policy, without those whose engines take text; those of one base and
    chat template are one object.
    """
    named = {
        name: (policy.base, policy.chat_template)
        for name, policy in config.policies.items()
        if not config.takes_text(name)
    }
    read: dict[tuple[str, str | None], Tokenizer] = {}
    for name, source in sorted(named.items()):
        if source not in read:
            base, chat_template = source
            key = f"policies.{name}.base"
            read[source] = read_tokenizer(base, key=key, chat_template=chat_template)
    return {name: read[source] for name, source in named.items()}


def policies_in_process(config: Config) -> list[str]:
    """Return the policies that this process trains or samples."""
    return [
        name
        for name in config.policies
        if config.is_embedded(name)
        or (name in config.trained_policies and not config.is_ranked(name))
    ]


def load_models(
    config: Config,
    names: Iterable[str],
    tokenizers: dict[str, Tokenizer],
    *,
    sampling: bool = False,
) -> dict[str, LanguageModel]:
    """Load a model for each policy with whole weights; adapters of one base share its frozen
    weights.

    A base is read once for each device and dtype: a copy in memory is quicker than its files.
    `sampling`: in the dtype of the engine, not in that of the learner.
    """
    models: dict[str, LanguageModel] = {}
    read: dict[tuple[str, ...], LanguageModel] = {}
    adapted: dict[str, dict[str, Adapter]] = {}
    for name in sorted(names):
        policy = config.policies[name]
        if policy.adapter is not None:
            adapted.setdefault(policy.base, {})[name] = policy.adapter
            if len(adapted[policy.base]) > 1:
                continue
        dtype = config.sampling_dtype(name) if sampling else config.get_learner(name).dtype
        kind = (policy.base, config.get_device(name), dtype, policy.quantization)
        if kind in read:
            models[name] = LanguageModel(deepcopy(read[kind].loaded), tokenizers[name])
        else:
            models[name] = read[kind] = load_configured(
                *kind[:3],
                key=f"policies.{name}.base",
                quantization=policy.quantization,
                sampled=config.is_embedded(name),
                tokenizer=tokenizers[name],
            )
    for _, adapters in sorted(adapted.items()):
        first = next(iter(adapters))
        seed = derive_seed(config.trainer.seed, "adapters") % 2**31
        try:
            models |= with_adapters(models[first].loaded, tokenizers[first], adapters, seed=seed)
        except ValueError as error:
            raise ConfigError(f"policies.{first}.adapter: {error}") from error
    return models


def make_learner(plan: Plan, name: str, models: dict[str, LanguageModel], ranks: Ranks) -> Learner:
    """Make the learner of a policy. Raises ConfigError, and RankError where ranks do not start."""
    config = plan.config
    algorithm = next(a for n, a in plan.algorithms.items() if config.team[n].policy == name)
    return learner_backend(config, name).make(
        LearnerRequest(
            total_updates=config.trainer.steps * algorithm.epochs * algorithm.minibatches,
            needs_value_head=algorithm.critic == "agent",
            models=models,
            ranks=ranks,
        )
    )


def make_critics(
    config: Config,
    algorithm: Algorithm,
    models: dict[str, LanguageModel],
    agents: dict[str, Agent],
) -> tuple[Critic | None, Discriminator | None]:
    """Return the algorithm's own critic, and its discriminator.

    A value head on each policy belongs to the policies' learners.
    """

    def parts(name: str) -> CriticInputs:
        return _critic_parts(config, name, models, agents)

    name, pays = algorithm.critic, algorithm.discriminator
    return (
        None if name in (None, "agent") else algorithm.make_critic(parts(name)),
        None if pays is None else algorithm.make_discriminator(parts(pays)),
    )


def _critic_parts(
    config: Config, name: str, models: dict[str, LanguageModel], agents: dict[str, Agent]
) -> CriticInputs:
    section = config.critics[name]

    def load() -> LanguageModel:
        assert section.base is not None, "checked before"
        learner = config.learner
        return load_configured(
            section.base, learner.device, learner.dtype, key=f"critics.{name}.base"
        )

    return CriticInputs(
        agents=list(config.team),
        models=models,
        load=load,
        experts=lambda file: experts(file, agents),
        optimizer=section.optimizer,
        budget=config.learner.tokens_per_batch,
        steps=config.trainer.steps,
        seed=derive_seed(config.trainer.seed, "critic") % 2**31,
        share_prefixes=config.learner.share_prefixes,
    )
