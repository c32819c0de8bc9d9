"""Reads the environment's tasks: what is trained on, validated on and tested on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rolecall.config.schema import Config
from rolecall.config.user_code_location import as_users_error
from rolecall.core.errors import ConfigError, nearest
from rolecall.core.interfaces.environment import ENDLESS, Environment
from rolecall.core.types import Task
from rolecall.environments import validation
from rolecall.environments.math.rows import duplicate_questions
from rolecall.environments.mixed import Mixture, mix_by_source
from rolecall.rollout.curriculum import PassRates
from rolecall.rollout.held_out import held_out
from rolecall.rollout.task_sampler import TaskSampler
from rolecall.rollout.user_code import check_tasks
from rolecall.setup.validate_options import check_task_sampler

log = logging.getLogger("rolecall")


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a run."""

    sampler: TaskSampler  # of train tasks
    test: list[Task]
    validation: list[Task]


def read_tasks(config: Config, environment: Environment) -> Tasks:
    """Read the tasks; raises ConfigError for invalid ones, or if no step can be sampled."""
    train, test = _splits(config, environment)
    train, chosen_on = _validation(config, environment, train)
    train = _draw_subset(config, train)
    held = [*test, *chosen_on]
    _check_sources(config, held)
    for tasks in train.parts.values() if isinstance(train, Mixture) else [train]:
        shared = duplicate_questions(tasks, held) if len(tasks) < ENDLESS else []
        if shared:
            log.warning(
                "train and held-out tasks share questions count=%d first=%s", len(shared), shared[0]
            )
    return Tasks(_sampler(config, train), test, chosen_on)


def _splits(config: Config, environment: Environment) -> tuple[Sequence[Task], list[Task]]:
    with as_users_error("environment: "):
        train = environment.tasks("train")
        check_tasks(train, split="train", call=environment.tasks)
        per_source, seed = config.evaluation.tasks, config.evaluation.subset_seed
        test = environment.tasks("test") if per_source else []
        check_tasks(test, split="test", call=environment.tasks)
        return train, held_out(test, per_source=per_source, seed=seed) if per_source else []


def _check_sources(config: Config, held: list[Task]) -> None:
    """Check that each source in `evaluation.samples` has tasks; raises ConfigError otherwise."""
    sources = sorted({task.source for task in held})
    problems = [
        f"evaluation.samples.{name}: no held-out task is of this source; {nearest(name, sources)}"
        for name in config.evaluation.sources
        if held and name not in sources
    ]
    if problems:
        raise ConfigError(*problems)


def _validation(
    config: Config, environment: Environment, train: Sequence[Task]
) -> tuple[Sequence[Task], list[Task]]:
    """Return the tasks left to train on, and the validation tasks: the environment's own, or held
    out.
    """
    number = config.evaluation.validation
    if not number:
        return train, []
    try:
        if not validation.has_validation(environment):
            return validation.split(train, per_source=number)
        own = environment.tasks(validation.SPLIT)
        check_tasks(own, split=validation.SPLIT, call=environment.tasks)
        return train, held_out(own, per_source=number)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"evaluation.validation: {error}") from error


def _draw_subset(config: Config, train: Sequence[Task]) -> Sequence[Task]:
    """Return `rollout.max_tasks` of the train tasks, in their order.

    NumPy's old generator draws them, as MAPPA does, so that one seed and file give the same tasks.
    """
    most = config.rollout.max_tasks
    if most is None:
        return train
    if isinstance(train, Mixture) or len(train) >= ENDLESS:
        raise ConfigError("rollout.max_tasks has no effect on generated or mixed tasks; remove it")
    if most >= len(train):
        return train
    random = np.random.RandomState(config.trainer.seed % 2**32)
    return [train[int(index)] for index in sorted(random.choice(len(train), most, replace=False))]


def _sampler(config: Config, train: Sequence[Task]) -> TaskSampler:
    rollout = config.rollout
    if rollout.stratify:
        try:
            train = mix_by_source(train, proportional=rollout.stratify == "proportional")
        except ValueError as error:
            raise ConfigError(f"rollout.stratify {error}") from error
    rates = None
    if rollout.curriculum is not None:
        rates = PassRates(rollout.curriculum, lag=config.trainer.max_staleness)
    sampler = TaskSampler(train, groups=rollout.groups, seed=config.trainer.seed, rates=rates)
    if problems := list(check_task_sampler(config, sampler)):
        raise ConfigError(*problems)
    return sampler
