"""A config in, everything a run is made of out; what does not fit together is a ConfigError."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rolecall.agents.agent import Policy
from rolecall.algorithms.base import Algorithm
from rolecall.config.errors import ConfigError
from rolecall.config.schema import Config
from rolecall.engines.local import LocalEngine
from rolecall.environments import validation
from rolecall.environments.math.rows import duplicate_questions
from rolecall.environments.mixed import Mixture
from rolecall.interfaces.environment import ENDLESS, Environment
from rolecall.models.language_model import LanguageModel, copies
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.evaluation import held_out
from rolecall.rollout.offline_data import demonstrations, preferences
from rolecall.rollout.opponent_pool import OpponentPool
from rolecall.rollout.user_code import check_tasks
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.setup import validate_algorithms, validate_options
from rolecall.setup.algorithms import check_options, make_algorithms
from rolecall.setup.parts import (
    make_agents,
    make_environment,
    make_reward,
    make_task_sampler,
    make_tools,
    resolve_workflow,
)
from rolecall.setup.weights import make_critic, make_learner, make_models
from rolecall.training.algorithm_group import AlgorithmGroup
from rolecall.training.run import Run
from rolecall.types import Group, Task
from rolecall.workflows.base import Workflow

log = logging.getLogger("rolecall")


def assemble(config: Config) -> Run:
    """Check, load, connect. Raises ConfigError before any weight is loaded where it can."""
    flow: Workflow = resolve_workflow(config.workflow)
    options = check_options("workflow", config.workflow, flow.play, skip=3)
    algorithms = make_algorithms(config)
    validate_options.check_team(config, flow)
    validate_options.check_effects(config)
    validate_options.check_opponents(config)
    validate_options.check_coach(config)
    validate_options.check_sampling(config)
    validate_algorithms.check_needs(config, flow, algorithms)
    environment = make_environment(config)
    train, test, chosen_on = _tasks(config, environment)
    sampler = make_task_sampler(config, train)
    number = validate_algorithms.num_candidates(config, flow) or 2
    for part in sampler.parts.values():
        validate_algorithms.check_fork(config, flow, environment, part[0], number)
    rewards = {name: make_reward(name, given) for name, given in config.rewards.items()}
    kits = make_tools(config)
    models = make_models(config)
    barrier = IdleBarrier()
    engine = LocalEngine(
        copies(models) if config.engine.separate_weights else models,
        barrier=barrier,
        deterministic=config.deterministic,
        max_rows=config.engine.max_rows,
        cache_gb=config.engine.cache_gb,
        free_on_update=config.engine.free_on_update,
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
    context = RolloutContext(
        agents=make_agents(config, flow, policies, kits),
        workflow=flow,
        options=options,
        environment=environment,
        rewards=rewards,
        seed=config.trainer.seed,
        timeout_s=config.rollout.timeout_s,
        retries=config.rollout.retries,
        concurrency=config.rollout.concurrency,
        barrier=barrier,
    )
    algorithm_groups = _credits(config, algorithms, models)
    learners = {
        name: make_learner(config, name, models, algorithms) for name in sorted(config.trained)
    }
    opponent_pools = {
        name: OpponentPool(
            models[policy.opponent_pool.of], policy.opponent_pool, seed=config.trainer.seed
        )
        for name, policy in config.policies.items()
        if policy.opponent_pool is not None
    }
    return Run(
        config=config,
        context=context,
        sampler=sampler,
        test=test,
        validation=chosen_on,
        engine=engine,
        models=models,
        learners=learners,
        opponent_pools=opponent_pools,
        algorithm_groups=algorithm_groups,
        data=_data(config, algorithms, context),
    )


def _tasks(
    config: Config, environment: Environment
) -> tuple[Sequence[Task], list[Task], list[Task]]:
    """What is trained on, tested on and validated on."""
    try:
        train = environment.tasks("train")
        check_tasks(train, split="train")
        asked = config.evaluation.tasks
        test = environment.tasks("test") if asked else []
        check_tasks(test, split="test")
        test = held_out(test, per_source=asked) if asked else []
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from error
    train, chosen_on = _validation(config, environment, train)
    held = [*test, *chosen_on]
    for part in train.parts.values() if isinstance(train, Mixture) else [train]:
        shared = duplicate_questions(part, held) if len(part) < ENDLESS else []
        if shared:
            log.warning(
                "train and held-out tasks share questions count=%d first=%s", len(shared), shared[0]
            )
    return train, test, chosen_on


def _validation(
    config: Config, environment: Environment, train: Sequence[Task]
) -> tuple[Sequence[Task], list[Task]]:
    """What is left to train on, and the validation tasks: the environment's own, or held out."""
    number = config.evaluation.validation
    if not number:
        return train, []
    try:
        if not validation.has_validation(environment):
            return validation.split(train, per_source=number)
        own = environment.tasks(validation.SPLIT)
        check_tasks(own, split=validation.SPLIT)
        return train, held_out(own, per_source=number)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"evaluation.validation: {error}") from error


def _credits(
    config: Config, algorithms: dict[str, Algorithm], models: dict[str, LanguageModel]
) -> list[AlgorithmGroup]:
    algorithm_groups: list[AlgorithmGroup] = []
    for name, algorithm in algorithms.items():
        same = next((part for part in algorithm_groups if part.algorithm is algorithm), None)
        if same is not None:
            same.agents |= {name}
        else:
            critic = make_critic(config, algorithm, models)
            algorithm_groups.append(AlgorithmGroup(algorithm, frozenset({name}), critic))
    return algorithm_groups


def _data(config: Config, algorithms: dict[str, Algorithm], context: RolloutContext) -> list[Group]:
    if config.rollout.data is None:
        return []
    [kind] = {algorithm.takes_data for algorithm in algorithms.values()}
    read = demonstrations if kind == "demonstrations" else preferences
    try:
        groups = read(config.rollout.data, context.agents)
    except ValueError as error:
        raise ConfigError(f"rollout.data: {error}") from error
    if config.rollout.groups > len(groups):
        raise ConfigError(
            f"rollout.groups: a step of {config.rollout.groups} {kind} cannot be drawn from "
            f"{len(groups)} rows"
        )
    return groups
