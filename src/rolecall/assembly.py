"""A config in, everything a run is made of out; what does not fit together is a ConfigError."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from pydantic import BaseModel, ValidationError

from rolecall import checkpoint, checks, needs, registry
from rolecall.agents import Agent, Policy
from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.mixing import Vdn
from rolecall.chat import Tokenizer
from rolecall.config import AgentConfig, Config, Named
from rolecall.config_errors import ConfigError, explain
from rolecall.core import Episode, Group, Task
from rolecall.critics.joint import JointCritic
from rolecall.critics.utilities import UtilityCritic
from rolecall.data import preferences
from rolecall.engines.torch import TorchEngine
from rolecall.environments.base import ENDLESS, Environment
from rolecall.environments.rows import duplicate_questions
from rolecall.evaluate import held_out
from rolecall.learners.local import LocalLearner
from rolecall.models import LanguageModel, copies, load_model, load_tokenizer, with_adapters
from rolecall.rollout import Stage
from rolecall.scope import Quiet
from rolecall.seeds import seed_of
from rolecall.workflows.base import Workflow, workflow

log = logging.getLogger("rolecall")


class Critic(Protocol):
    """Expects rewards; the algorithm that needs it says what it should have expected."""

    def annotate(self, episodes: list[Episode]) -> None: ...
    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


@dataclass(slots=True)
class Credit:
    """An algorithm and the agents whose turns it trains."""

    algorithm: Algorithm
    agents: frozenset[str]
    critic: Critic | None = None


@dataclass(slots=True)
class Run:
    """The parts of one run; only the trainer and the evaluation hold them all."""

    config: Config
    stage: Stage
    train: Sequence[Task]
    test: list[Task]  # the held-out tasks that are evaluated
    engine: TorchEngine
    models: dict[str, LanguageModel]
    learners: dict[str, LocalLearner]  # by policy; policies that nobody trains have none
    credits: list[Credit]
    data: list[Group]  # what is trained on instead of episodes, if anything

    def credit_of(self, policy: str) -> Credit:
        """Agents that share a policy have one loss, so any of their algorithms will do."""
        agents = {name for name, agent in self.config.team.items() if agent.policy == policy}
        return next(part for part in self.credits if part.agents & agents)

    @property
    def parts(self) -> dict[str, checkpoint.Saved]:
        """Folder of a checkpoint -> what it holds; a policy cannot have a name with a dot."""
        critics = {
            f"critic.{part.algorithm.critic}": part.critic
            for part in self.credits
            if part.critic is not None
        }
        return {**self.learners, **critics}

    def restore(self, saved: Path) -> None:
        """Take over a checkpoint's weights, critics and algorithm states."""
        states = checkpoint.load(saved, self.parts)
        for part, state in zip(self.credits, states, strict=True):
            part.algorithm.load_state_dict(state)


def assemble(config: Config) -> Run:
    """Check, load, connect. Raises ConfigError before any weight is loaded where it can."""
    flow: Workflow = resolve_workflow(config.workflow)
    options = check_options("workflow", config.workflow, flow.play, skip=3)
    algorithms = make_algorithms(config)
    checks.check_team(config, flow)
    checks.check_effects(config)
    checks.check_sampling(config)
    needs.check_needs(config, flow, algorithms)
    environment = make_environment(config)
    train, test = _tasks(config, environment)
    number = needs.num_candidates(config, flow) or 2
    needs.check_fork(config, flow, environment, train[0], number)
    rewards = {
        name: (registry.resolve("reward", name, key="rewards"), weight)
        for name, weight in config.rewards.items()
    }
    models = _models(config)
    quiet = Quiet()
    engine = TorchEngine(
        copies(models) if config.engine.copy else models,
        quiet=quiet,
        deterministic=config.deterministic,
        max_rows=config.engine.max_rows,
        cache_gb=config.engine.cache_gb,
    )
    policies = {
        name: Policy(
            name=name,
            tokenizer=model.tokenizer,
            engine=engine,
            template=config.policies[name].template,
        )
        for name, model in models.items()
    }
    stage = Stage(
        agents={name: _agent(name, agent, flow, policies) for name, agent in config.team.items()},
        workflow=flow,
        options=options,
        environment=environment,
        rewards=rewards,
        seed=config.trainer.seed,
        timeout_s=config.rollout.timeout_s,
        retries=config.rollout.retries,
        concurrency=config.rollout.concurrency,
        quiet=quiet,
    )
    credits = _credits(config, algorithms, models)
    learners = {name: _learner(config, name, models, algorithms) for name in sorted(config.trained)}
    return Run(config, stage, train, test, engine, models, learners, credits, _data(config, stage))


def resolve_workflow(named: Named) -> Workflow:
    found = registry.resolve("workflow", named.name, key="workflow.name")
    try:
        return found if isinstance(found, Workflow) else workflow(found)
    except ValueError as error:
        raise ConfigError(f"workflow.name: {error}") from error


def make_environment(config: Config) -> Environment:
    kind = registry.resolve("environment", config.environment.name, key="environment.name")
    options = check_options("environment", config.environment, kind, skip=0)
    try:
        return kind(**options)
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from error


def _tasks(config: Config, environment: Environment) -> tuple[Sequence[Task], list[Task]]:
    try:
        train = environment.tasks("train")
        asked = config.evaluation.tasks
        test = held_out(environment.tasks("test"), per_source=asked) if asked else []
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from error
    if config.rollout.groups > len(train):
        raise ConfigError(
            f"rollout.groups: a step of {config.rollout.groups} tasks cannot be drawn from "
            f"{len(train)} train tasks"
        )
    if len(train) < ENDLESS:
        shared = duplicate_questions(train, test)
        if shared:
            log.warning("train and test share questions count=%d first=%s", len(shared), shared[0])
    return train, test


def make_algorithms(config: Config) -> dict[str, Algorithm]:
    """The algorithm of each trainable agent; agents of equal settings share one object."""
    made: dict[str, Algorithm] = {}
    found = {}
    for name, agent in config.team.items():
        if agent.trainable:
            named = agent.algorithm or config.algorithm
            key = "algorithm" if agent.algorithm is None else f"team.{name}.algorithm"
            found[name] = made.setdefault(repr(named), _make_algorithm(config, named, key))
        elif agent.algorithm is not None:
            raise ConfigError(f"team.{name}.algorithm has no effect: it is not trainable")
    if found and all(config.team[name].algorithm for name in found):
        raise ConfigError("algorithm has no effect: every trainable agent has its own")
    return found


def _make_algorithm(config: Config, named: Named, key: str) -> Algorithm:
    kind = registry.resolve("algorithm", named.name, key=f"{key}.name")
    options = check_options(key, named, kind, skip=0)
    algorithm: Algorithm = kind(**options)
    longest = max(agent.sampling.max_tokens for agent in config.team.values())
    missing = {
        name: longest
        for name in ("turn_length", "longest")
        if getattr(algorithm, name, 0) is None and (name != "turn_length" or _sums(algorithm))
    }
    return algorithm.model_copy(update=missing) if missing else algorithm


def _sums(algorithm: Algorithm) -> bool:
    return algorithm.agg == "turn_sum"


def _credits(
    config: Config, algorithms: dict[str, Algorithm], models: dict[str, LanguageModel]
) -> list[Credit]:
    credits: list[Credit] = []
    for name, algorithm in algorithms.items():
        same = next((part for part in credits if part.algorithm is algorithm), None)
        if same is not None:
            same.agents |= {name}
        else:
            critic = _critic(config, algorithm, models)
            credits.append(Credit(algorithm, frozenset({name}), critic))
    return credits


def _critic(
    config: Config, algorithm: Algorithm, models: dict[str, LanguageModel]
) -> Critic | None:
    if algorithm.critic in (None, "agent"):
        return None  # a value head belongs to its policy's learner
    critic = config.critics[algorithm.critic]
    passes = getattr(algorithm, "critic_passes", 1)
    shared: dict[str, Any] = {
        "agents": list(config.team),
        "budget": config.learner.ids_per_batch,
        "total_updates": config.trainer.steps * passes,
    }
    reader = None
    if critic.base is not None:
        key = f"critics.{algorithm.critic}.base"
        reader = _load(critic.base, key, config, tokenizer=None)
    if isinstance(algorithm, Vdn):
        return UtilityCritic(
            models, critic.optimizer, mixer=algorithm.mixer, reader=reader,
            seed=seed_of(config.trainer.seed, "critic") % 2**31, **shared,
        )  # fmt: skip
    assert reader is not None, "checked before"
    return JointCritic(reader, critic.optimizer, **shared)


def _learner(
    config: Config, name: str, models: dict[str, LanguageModel], algorithms: dict[str, Algorithm]
) -> LocalLearner:
    policy = config.policies[name]
    algorithm = next(a for agent, a in algorithms.items() if config.team[agent].policy == name)
    assert policy.optimizer is not None, "the config fills it in"
    return LocalLearner(
        models[name],
        policy.optimizer,
        total_updates=config.trainer.steps * algorithm.passes * algorithm.minibatches,
        reference=_reference(config, name, models[name]),
        head=config.critics["agent"].optimizer if algorithm.critic == "agent" else None,
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


def _data(config: Config, stage: Stage) -> list[Group]:
    if config.rollout.data is None:
        return []
    try:
        groups = preferences(config.rollout.data, stage.agents)
    except ValueError as error:
        raise ConfigError(f"rollout.data: {error}") from error
    if config.rollout.groups > len(groups):
        raise ConfigError(
            f"rollout.groups: a step of {config.rollout.groups} pairs cannot be drawn from "
            f"{len(groups)} rows"
        )
    return groups


def check_options(key: str, named: Named, call: Any, *, skip: int) -> dict[str, Any]:
    """The options of a workflow, environment or algorithm with the types its signature asks for."""
    model: type[BaseModel] = registry.options_model(call, skip=skip)
    try:
        checked = model.model_validate(named.options)
    except ValidationError as error:
        raise explain(error, model, prefix=key) from error
    return {name: getattr(checked, name) for name in named.options}


def _agent(name: str, config: AgentConfig, flow: Workflow, policies: dict[str, Policy]) -> Agent:
    role = config.role or name
    parser = flow.parsers.get(role)
    if config.parser is not None:
        parser = registry.resolve("parser", config.parser, key=f"team.{name}.parser")
    if config.invalid_penalty and parser is None:
        raise ConfigError(
            f"team.{name}.invalid_penalty has no effect: nothing says what valid is; set "
            f"team.{name}.parser"
        )
    return Agent(
        name=name,
        policy=policies[config.policy],
        role=role,
        system=config.system,
        sampling=config.sampling,
        parser=parser,
        memory=config.memory,
        trainable=config.trainable,
        invalid_penalty=config.invalid_penalty,
    )


def _models(config: Config) -> dict[str, LanguageModel]:
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
