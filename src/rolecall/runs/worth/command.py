"""`rolecall worth`: whether a trained team is worth the tokens that it spends."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.explain.worth import BUDGETS, compare_arms
from rolecall.explain.worth_table import print_worth
from rolecall.monitor import terminal
from rolecall.runs.local_plan import load_local_plan
from rolecall.runs.worth.counterparts import play_counterparts
from rolecall.runs.worth.own_weights import DEMONSTRATIONS, play_run
from rolecall.runtime.consoles import PlainConsole
from rolecall.storage.log_file import log_to_file
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.whole_files import write_atomically

FOLDER = "worth"  # in the run's folder
FILE = "worth.json"
LOG = "log.txt"
SELF_PLAY = "self_play"


def worth(
    path: Path,
    *,
    checkpoint_name: str,
    answers: int,
    has_training: bool,
    overrides: list[str],
    quiet: bool,
) -> Record:
    """Print, write and return how a team compares with what could take its place.

    `answers`: most answers of a single agent to a task. With `has_training` counterparts are
    trained in the folder `worth` of the run. Raises ConfigError where the run has no team to
    compare, and RuntimeError where every episode of the team failed.
    """
    started = time.monotonic()
    folder = RunFolder.existing(path)
    plan = load_local_plan(folder, overrides, command="worth plays")
    _check(plan.config)
    kept = folder.path / FOLDER
    kept.mkdir(exist_ok=True)
    demonstrations = kept / DEMONSTRATIONS if has_training else None
    with terminal.notices(PlainConsole(stderr=True)), log_to_file(kept / LOG):
        played = play_run(plan, folder, checkpoint_name, demonstrations, answers=answers)
        if has_training:
            play_counterparts(plan, folder, kept, played)
    unit = "US dollars" if played.player.prices else "tokens"
    result = compare_arms(played.arms.team, played.arms.others, source=str(folder.path), unit=unit)
    result.num_sources = len({task.source for task in played.player.tasks})
    result.not_possible = played.arms.not_possible
    result.seconds = time.monotonic() - started
    record = asdict(result) | {
        "verdicts": {budget: asdict(result.verdict(budget)) for budget in BUDGETS}
    }
    write_atomically(kept / FILE, json.dumps(record, indent=2) + "\n")
    print_worth(result, PlainConsole(quiet=quiet))
    return record


def _check(config: Config) -> None:
    if len(config.team) < 2:
        [alone] = config.team
        raise ConfigError(f"{alone!r} is alone in its team; worth compares teams of two and more")
    if config.workflow.name == SELF_PLAY:
        raise ConfigError(
            "worth compares teams that work together, and these agents play against one another; "
            "`rolecall crossplay` compares players"
        )
    if config.evaluation.tasks == 0:
        raise ConfigError("evaluation.tasks: 0 leaves nothing to play; write at least 1")
