"""Computes how many steps a run has, where its length is given in epochs."""

from __future__ import annotations

from rolecall.config.schema import WRITTEN, Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS


def limit_steps(config: Config, number: int) -> int:
    """Return the steps of a run over `number` tasks or rows: those of its epochs, if it has some.

    Raises ConfigError for epochs of tasks that have no end.
    """
    trainer, groups = config.trainer, config.rollout.groups
    if trainer.epochs is None:
        return trainer.steps
    if number >= ENDLESS or config.rollout.data == WRITTEN:
        raise ConfigError("trainer.epochs: generated tasks have no end; write trainer.steps")
    return min(trainer.steps, max(1, int(trainer.epochs * (number // groups))))
