"""Says whether a run is finished, and writes what it came to."""

from __future__ import annotations

import json

from rolecall.config.schema import Config
from rolecall.core.json_types import Record
from rolecall.monitor import summary
from rolecall.monitor.comparison import evaluations
from rolecall.runtime.consoles import PlainConsole
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.whole_files import write_atomically


def is_finished(folder: RunFolder, config: Config) -> bool:
    """Return whether all steps are done, the last one's team is tested, and there is a summary.

    A run that was extended, and killed in its last evaluation, has the records of all its steps.
    """
    last = config.trainer.steps
    if not folder.summary.is_file() or folder.num_steps() < last:
        return False
    tested = {record["step"] for record in evaluations(folder.read_metrics())}
    return config.evaluation.tasks == 0 or last in tested


def keep_what_there_is(folder: RunFolder, config: Config) -> None:
    """Write report, curves and summary of a run that ended before its last step."""
    records = folder.read_metrics()
    if not records:
        return
    summarise(folder, config)
    show_shares(records)
    PlainConsole().print(
        f"Wrote {folder.path}: report.html, curves.png, summary.json", soft_wrap=True
    )


def show_untrained(found: Record) -> None:
    """Print which agents were to be trained and had nothing to learn from."""
    if names := found.get("untrained"):
        PlainConsole().print(
            f"Not trained: {', '.join(names)}. None of their turns was worth more or less than "
            "those that it is compared with; look at what rewards pay them, and at `rolecall show`",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def show_shares(records: list[Record]) -> None:
    """Print what there was to train on, a line for each policy."""
    for policy, shares in summary.shares_by_policy(records).items():
        PlainConsole().print(summary.shares_line(policy, shares), soft_wrap=True, highlight=False)


def summarise(folder: RunFolder, config: Config) -> Record:
    from rolecall.monitor import report  # with Matplotlib, which takes its time

    records = folder.read_metrics()
    policies = {name: agent.policy for name, agent in config.team.items() if agent.trainable}
    result = summary.summarise(records, seed=config.trainer.seed, policies=policies)
    if (fork := folder.read_fork()) is not None:
        result["fork"] = fork
    report.write(folder)
    write_atomically(folder.summary, json.dumps(result, indent=2) + "\n")
    return result
