"""A config in, all that has weights out: models, references, learners, critics."""

from __future__ import annotations

from typing import Any, Literal

import torch

from rolecall.agents.chat_template import Tokenizer
from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.mixing import Vdn
from rolecall.config.errors import ConfigError
from rolecall.config.schema import Config
from rolecall.critics.joint import JointCritic
from rolecall.critics.utilities import UtilityCritic
from rolecall.learners.local import LocalLearner
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.seeding import seed_of
from rolecall.training.algorithm_group import Critic


def make_models(config: Config) -> dict[str, LanguageModel]:
    """Whole-weight policies get a model each; adapters of one base share its frozen weights."""
    models: dict[str, LanguageModel] = {}
    adapted: dict[str, dict[str, Any]] = {}
    tokenizers: dict[str, Tokenizer] = {}
    for name, policy in sorted(config.policies.items()):
        key = f"policies.{name}.base"
        if policy.base not in tokenizers:
            tokenizers[policy.base] = _tokenizer(policy.base, key)
        if policy.adapter is not None:
            adapted.setdefault(policy.base, {})[name] = policy.adapter
        else:
            models[name] = _load(policy.base, key, config, tokenizer=tokenizers[policy.base])
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


def make_learner(
    config: Config, name: str, models: dict[str, LanguageModel], algorithms: dict[str, Algorithm]
) -> LocalLearner:
    policy = config.policies[name]
    algorithm = next(a for agent, a in algorithms.items() if config.team[agent].policy == name)
    assert policy.optimizer is not None, "the config fills it in"
    return LocalLearner(
        models[name],
        policy.optimizer,
        total_updates=config.trainer.steps * algorithm.epochs * algorithm.minibatches,
        reference=_reference(config, name, models[name]),
        head=config.critics["agent"].optimizer if algorithm.critic == "agent" else None,
        checkpoint_activations=config.learner.checkpoint_activations,
        share_prefixes=config.learner.share_prefixes,
    )


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
    if algorithm.critic in (None, "agent"):
        return None  # a value head belongs to its policy's learner
    critic = config.critics[algorithm.critic]
    epochs = getattr(algorithm, "critic_epochs", 1)
    shared: dict[str, Any] = {
        "agents": list(config.team),
        "budget": config.learner.tokens_per_batch,
        "total_updates": config.trainer.steps * epochs,
    }
    reader = None
    if critic.base is not None:
        key = f"critics.{algorithm.critic}.base"
        reader = _load(critic.base, key, config, tokenizer=None)
    if isinstance(algorithm, Vdn):
        return UtilityCritic(
            models, critic.optimizer, mixer=algorithm.mixer, reader=reader,
            seed=seed_of(config.trainer.seed, "critic") % 2**31,
            share_prefixes=config.learner.share_prefixes, **shared,
        )  # fmt: skip
    assert reader is not None, "checked before"
    return JointCritic(reader, critic.optimizer, **shared)
