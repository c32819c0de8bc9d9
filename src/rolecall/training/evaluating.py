"""Evaluates the team of a run, and keeps what it said and how far it came."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rolecall.core.json_types import Record
from rolecall.core.types import Task
from rolecall.engines.prices import find_prices
from rolecall.rollout.evaluation import EvaluationOutputs, evaluate
from rolecall.storage.episode_io import EpisodeWriter
from rolecall.storage.evaluation_journal import EvaluationJournal
from rolecall.training.run import Run


async def evaluate_run(
    run: Run,
    tasks: list[Task],
    *,
    split: str = "test",
    step: int = 0,
    file: Path | None = None,
    journal: EvaluationJournal | None = None,
) -> Record:
    """Evaluate as `rollout.evaluation.evaluate` does, with what the run's config says.

    What was said goes to the Parquet `file`, once all is there. The journal stays: whoever has
    written down what was found removes it.
    """
    with ExitStack() as stack:
        around = EvaluationOutputs(
            prices=find_prices(run.config),
            sink=None if file is None else stack.enter_context(EpisodeWriter(file, step=step)),
            journals=None if journal is None else stack.enter_context(journal),
            forget=run.engine.reset_prefix_cache if run.config.deterministic else None,
        )
        return await evaluate(run.context, tasks, run.config.evaluation, split=split, around=around)
