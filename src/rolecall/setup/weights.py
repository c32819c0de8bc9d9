"""Makes all that has weights: models, references, learners, critics."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import torch

from rolecall.agents.chat_template import Tokenizer
from rolecall.algorithms.base import Algorithm
from rolecall.config.errors import ConfigError
from rolecall.config.schema import Config
from rolecall.critics.parts import CriticParts
from rolecall.interfaces.critic import Critic
from rolecall.interfaces.learner import Learner
from rolecall.learners.local import LocalLearner
from rolecall.learners.parts import LearnerParts
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.seeding import seed_of
from rolecall.setup.plan import Plan


def make_models(config: Config) -> dict[str, LanguageModel]:
    """Whole-weight policies get a model each; adapters of one base share its frozen weights.

    A base is read once: a copy in memory is quicker than its files.
    """
    models: dict[str, LanguageModel] = {}
    read: dict[str, LanguageModel] = {}
    adapted: dict[str, dict[str, Any]] = {}
    tokenizers: dict[str, Tokenizer] = {}
    for name, policy in sorted(config.policies.items()):
        key = f"policies.{name}.base"
        if policy.base not in tokenizers:
            tokenizers[policy.base] = _tokenizer(policy.base, key)
        if policy.adapter is not None:
            adapted.setdefault(policy.base, {})[name] = policy.adapter
        elif policy.base in read:
            again = deepcopy(read[policy.base].model)
            models[name] = LanguageModel(again, tokenizers[policy.base])
        else:
            models[name] = _load(policy.base, key, config, tokenizer=tokenizers[policy.base])
            read[policy.base] = models[name]
    for base, adapters in sorted(adapted.items()):
        first = next(iter(adapters))
        model = _load(base, f"policies.{first}.base", config, tokenizer=tokenizers[base]).model
        seed = seed_of(config.trainer.seed, "adapters") % 2**31
        try:
            models |= with_adapters(model, tokenizers[base], adapters, seed=seed)
        except ValueError as error:
            raise ConfigError(f"policies.{first}.adapter: {error}") from error
    return models


def _load(base: str, key: str, config: Config, *, tokenizer: Tokenizer | None) -> LanguageModel:
    wanted = config.learner.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, config.learner.dtype)
    try:
        model = load_model(base, device=torch.device(wanted), dtype=dtype)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    return LanguageModel(model, _tokenizer(base, key) if tokenizer is None else tokenizer)


def _tokenizer(base: str, key: str) -> Tokenizer:
    try:
        return load_tokenizer(base)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def make_learner(plan: Plan, name: str, models: dict[str, LanguageModel]) -> Learner:
    """The learner of a policy: the embedded one, or the config's own. Raises ConfigError."""
    config = plan.config
    policy = config.policies[name]
    algorithm = next(a for n, a in plan.algorithms.items() if config.team[n].policy == name)
    assert policy.optimizer is not None, "the config fills it in"
    parts = LearnerParts(
        model=models[name],
        optimizer=policy.optimizer,
        total_updates=config.trainer.steps * algorithm.epochs * algorithm.minibatches,
        reference=_reference(config, name, models[name]),
        head=config.critics["agent"].optimizer if algorithm.critic == "agent" else None,
        checkpoint_activations=config.learner.checkpoint_activations,
        share_prefixes=config.learner.share_prefixes,
    )
    if plan.learner is not None:
        made: Learner = plan.learner.make(parts)
        return made
    return LocalLearner(**parts.as_arguments())


def _reference(
    config: Config, name: str, model: LanguageModel
) -> LanguageModel | Literal["base"] | None:
    base = config.policies[name].reference
    if base is None:
        return None
    if base == "initial":
        return "base" if model.adapter is not None else model.frozen_copy()
    key = f"policies.{name}.reference"
    reference = _load(base, key, config, tokenizer=None)
    if reference.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        raise ConfigError(f"{key}: {base!r} has another vocabulary than the policy")
    return reference


def make_critic(
    config: Config, algorithm: Algorithm, models: dict[str, LanguageModel]
) -> Critic | None:
    """The algorithm's own; a value head on each policy belongs to the policies' learners."""
    name = algorithm.critic
    if name is None or name == "agent":
        return None
    section = config.critics[name]

    def load() -> LanguageModel:
        assert section.base is not None, "checked before"
        return _load(section.base, f"critics.{name}.base", config, tokenizer=None)

    return algorithm.make_critic(
        CriticParts(
            agents=list(config.team),
            models=models,
            load=load,
            optimizer=section.optimizer,
            budget=config.learner.tokens_per_batch,
            steps=config.trainer.steps,
            seed=seed_of(config.trainer.seed, "critic") % 2**31,
            share_prefixes=config.learner.share_prefixes,
        )
    )
