"""A config in, everything a run is made of out; what does not fit together is a ConfigError."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from rolecall import checks, registry
from rolecall.agents import Agent, Policy
from rolecall.algorithms.base import Algorithm
from rolecall.chat import Tokenizer
from rolecall.config import AgentConfig, Config, Named
from rolecall.config_errors import ConfigError, explain
from rolecall.core import Task
from rolecall.engines.torch import TorchEngine
from rolecall.environments.base import ENDLESS, Environment
from rolecall.environments.rows import duplicate_questions
from rolecall.evaluate import held_out
from rolecall.learners.local import LocalLearner
from rolecall.models import LanguageModel, load_model, load_tokenizer, with_adapters
from rolecall.rollout import Stage
from rolecall.scope import Quiet
from rolecall.seeds import seed_of
from rolecall.workflows.base import Workflow, workflow

log = logging.getLogger("rolecall")


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
    algorithm: Algorithm


def assemble(config: Config) -> Run:
    """Check, load, connect. Raises ConfigError before any weight is loaded where it can."""
    flow: Workflow = resolve_workflow(config.workflow)
    options = check_options("workflow", config.workflow, flow.play, skip=3)
    algorithm = make_algorithm(config)
    checks.check_team(config, flow)
    checks.check_effects(config)
    checks.check_sampling(config)
    if config.rollout.group_size < algorithm.min_group:
        raise ConfigError(
            f"rollout.group_size: {config.algorithm.name} compares attempts at one task and needs "
            f"at least {algorithm.min_group} (it is {config.rollout.group_size})"
        )
    environment = make_environment(config)
    train, test = _tasks(config, environment)
    rewards = {
        name: (registry.resolve("reward", name, key="rewards"), weight)
        for name, weight in config.rewards.items()
    }
    models = _models(config)
    quiet = Quiet()
    engine = TorchEngine(
        models,
        quiet=quiet,
        deterministic=config.trainer.deterministic,
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
    learners = {
        name: LocalLearner(models[name], optimizer, total_updates=config.trainer.steps)
        for name in sorted(config.trained)
        if (optimizer := config.policies[name].optimizer) is not None
    }
    return Run(config, stage, train, test, engine, models, learners, algorithm)


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


def make_algorithm(config: Config) -> Algorithm:
    kind = registry.resolve("algorithm", config.algorithm.name, key="algorithm.name")
    options = check_options("algorithm", config.algorithm, kind, skip=0)
    algorithm: Algorithm = kind(**options)
    if algorithm.agg != "turn_sum" and algorithm.turn_length is not None:
        raise ConfigError("algorithm.turn_length has no effect unless algorithm.agg is turn_sum")
    if algorithm.agg == "turn_sum" and algorithm.turn_length is None:
        longest = max(agent.sampling.max_tokens for agent in config.team.values())
        algorithm = algorithm.model_copy(update={"turn_length": longest})
    return algorithm


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
    name = config.learner.device
    device = torch.device(
        name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    )
    dtype = getattr(torch, config.learner.dtype)
    models: dict[str, LanguageModel] = {}
    adapted: dict[str, dict[str, Any]] = {}
    tokenizers: dict[str, Tokenizer] = {}
    for policy_name, policy in sorted(config.policies.items()):
        key = f"policies.{policy_name}.base"
        try:
            if policy.base not in tokenizers:
                tokenizers[policy.base] = load_tokenizer(policy.base)
            if policy.adapter is not None:
                adapted.setdefault(policy.base, {})[policy_name] = policy.adapter
            else:
                model = load_model(policy.base, device=device, dtype=dtype)
                models[policy_name] = LanguageModel(model, tokenizers[policy.base])
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
    for base, adapters in sorted(adapted.items()):
        try:
            model = load_model(base, device=device, dtype=dtype)
            seed = seed_of(config.trainer.seed, "adapters") % 2**31
            models |= with_adapters(model, tokenizers[base], adapters, seed=seed)
        except ValueError as error:
            raise ConfigError(f"policies.{next(iter(adapters))}.adapter: {error}") from error
    return models
