"""`rolecall spikes`: which agents, turns and tokens moved the gradient of a step most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.core.types import Turn
from rolecall.learners.local import LocalLearner
from rolecall.learners.optimizer import total_norm
from rolecall.learners.packing import join
from rolecall.runs.local_plan import load_local_plan
from rolecall.runs.replaying import Weights, choose_weights, open_run
from rolecall.runs.spikes_table import print_spikes
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.training.run import Run
from rolecall.watch.models import SpikeToken
from rolecall.watch.refusals import UnknownNameError
from rolecall.watch.runs import WatchedRun
from rolecall.watch.spikes import answer_spikes


def spikes(
    path: Path,
    *,
    step: int | None,
    number: int,
    measures: bool,
    weights: str | None,
    overrides: list[str],
    quiet: bool,
) -> Record:
    """Print and return where the gradient of a step came from.

    With `measures` the gradients of the `number` tokens with the largest estimates are computed,
    with the weights of that name (latest, best, step-N, first) or those that sampled the step.
    Raises ConfigError where there is no such step or checkpoint.
    """
    folder = RunFolder.existing(path)
    watched = WatchedRun(folder.path.name, folder.path)
    try:
        answer = answer_spikes(watched, step)
    except UnknownNameError as error:
        raise ConfigError(str(error)) from error
    if measures and answer.tokens:
        chosen = choose_weights(folder, answer.step, weights)
        tokens = answer.tokens[:number]
        norms = _measure(folder, answer.step, tokens, chosen, overrides)
        answer = answer_spikes(watched, answer.step, measured=norms)
        answer.note += f"; measured with {chosen.describe(answer.step)}"
    print_spikes(answer, number, PlainConsole(quiet=quiet))
    return answer.model_dump()


def _measure(
    folder: RunFolder, step: int, tokens: list[SpikeToken], chosen: Weights, overrides: list[str]
) -> dict[tuple[str, int], float]:
    """Return the norms of the tokens' own gradients, by turn and place in the turn."""
    plan = load_local_plan(folder, overrides, command="spikes measures")
    names = {token.turn for token in tokens}
    episodes = read_parquet(folder.episode_file(step))
    turns = {turn.id: turn for e in episodes for turn in e.turns if turn.id in names}
    with open_run(plan, folder, chosen) as run, activity(f"measuring {len(tokens)} tokens"):
        return measure_tokens(run, turns, tokens)


def measure_tokens(
    run: Run, turns: Mapping[str, Turn], tokens: Iterable[SpikeToken]
) -> dict[tuple[str, int], float]:
    """Return |weight x ratio x advantage| times the norm of the log-prob's gradient, of each token.

    Raises ConfigError for a learner of other processes.
    """
    grouped: dict[str, list[SpikeToken]] = defaultdict(list)
    for token in tokens:
        grouped[token.turn].append(token)
    norms: dict[tuple[str, int], float] = {}
    for name, own in grouped.items():
        turn = turns[name]
        learner = run.learners[turn.policy]
        if not isinstance(learner, LocalLearner):
            raise ConfigError(
                f"policies.{turn.policy}: its learner runs in other processes; add "
                "learner.name=local to measure on this machine"
            )
        batch = join([[turn]])
        places = np.flatnonzero(batch.mask)
        logprobs = learner.forward(batch).logprobs
        for token in own:
            gradient = torch.autograd.grad(
                logprobs[int(places[token.token])],
                learner.parameters,
                retain_graph=True,
                allow_unused=True,
            )
            norm = total_norm([share for share in gradient if share is not None])
            size = abs(turn.weight * token.ratio * token.advantage)
            norms[name, token.token] = size * norm
    return norms
