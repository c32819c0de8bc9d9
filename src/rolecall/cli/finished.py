"""Says whether a run is finished, and writes what it came to."""

from __future__ import annotations

import json
from typing import Any

from rolecall.config.schema import Config
from rolecall.monitor import summary
from rolecall.storage import run_folder
from rolecall.storage.run_folder import RunFolder


def is_finished(folder: RunFolder, config: Config) -> bool:
    return folder.summary.is_file() and folder.num_steps() >= config.trainer.steps


def summarised(folder: RunFolder, config: Config) -> dict[str, Any]:
    from rolecall.monitor import report  # with Matplotlib, which takes its time

    records = folder.read_metrics()
    found = summary.summarise(records, seed=config.trainer.seed)
    report.write(folder)
    run_folder.write_aside(folder.summary, json.dumps(found, indent=2) + "\n")
    return found
