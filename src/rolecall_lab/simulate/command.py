"""`rolecall simulate` says what a run takes on other numbers of GPUs, and how to split them."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from rolecall.config.load import find, load
from rolecall.core.errors import ConfigError
from rolecall.runs.run_paths import is_run
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity, track
from rolecall.storage.run_folder import RunFolder
from rolecall_lab.simulate.costs import Cores
from rolecall_lab.simulate.measured import read_measured
from rolecall_lab.simulate.sizes import sizes
from rolecall_lab.simulate.sources import Simulated, simulate_figures, simulate_run
from rolecall_lab.simulate.splits import STALENESS, Outcome, Search, add_failures, outcome
from rolecall_lab.simulate.table import show

AS_PLACED = 8  # steps that are simulated of one placement
WIDTH, FAULTS_WIDTH = 112, 20  # columns that the table needs


def simulate(
    source: str,
    overrides: list[str],
    *,
    gpus: str | None = None,
    measured: Path | None = None,
    mtbf_hours: float | None = None,
    environment_s: float | None = None,
    restart_s: float | None = None,
    cores: int | None = None,
) -> dict[str, Any]:
    """Print and return it; without `gpus` the run is placed as its config says.

    Raises ConfigError for what is missing or does not fit together.
    """
    numbers = None if gpus is None else sizes(gpus)
    wide = WIDTH + (FAULTS_WIDTH if mtbf_hours is not None else 0)
    console = PlainConsole(width=max(wide, PlainConsole().width))
    what = _what(
        source, overrides, measured=measured, environment_s=environment_s, cores=cores,
        console=console,
    )  # fmt: skip
    if restart_s is not None:
        what.costs = replace(what.costs, restart_s=restart_s)
    if environment_s is not None:
        what.costs = replace(what.costs, environment_s=environment_s)
    if numbers is None:
        placement = what.placement
        number = placement.gpus(what.costs.engine.gpus)
        with activity(f"simulating {AS_PLACED} steps"):
            outcomes = [
                outcome(what.workload, what.costs, placement, gpus=number, num_steps=AS_PLACED)
            ]
    else:
        what.costs = replace(what.costs, cores=Cores())
        outcomes = _of_sizes(numbers, what)
    if mtbf_hours is not None:
        failing = (
            add_failures(one, what.workload, what.costs, mtbf_hours=mtbf_hours) for one in outcomes
        )
        outcomes = list(
            track(failing, "simulating failures", total=len(outcomes), unit="placements")
        )
    show(outcomes, console, faults=mtbf_hours is not None)
    return {
        "measured_step_s": what.measured_step_s,
        "simulated_step_s": what.simulated_step_s,
        "engine": asdict(what.costs.engine),
        "learner": asdict(what.costs.learner),
        "publish_s": what.costs.publish.seconds,
        "placements": [one.as_dict() for one in outcomes],
    }


def _what(
    source: str,
    overrides: list[str],
    *,
    measured: Path | None,
    environment_s: float | None,
    cores: int | None,
    console: Console,
) -> Simulated:
    path = Path(source)
    folder = RunFolder.existing(path) if is_run(path) else None
    if measured is not None:
        figures = read_measured(measured)
        config = load(folder.config if folder else find(source), overrides)
        source_of = " ".join(figures.source.split()) or "no source is named"
        console.print(f"Figures of {measured}: {source_of}", highlight=False)
        return simulate_figures(config, figures, folder)
    if folder is None:
        raise ConfigError(
            f"{source} is a config, which says nothing of times: name the folder of a run to "
            "calibrate on, or give figures with --measured FILE"
        )
    with activity(f"calibrating on {path}"):
        what = simulate_run(folder, overrides, environment_s=environment_s or 0.0, cores=cores)
    was, now = what.measured_step_s, what.simulated_step_s
    if was and now is not None:
        console.print(
            f"Calibrated on {path}: its steps took {was:.3g} s, simulated {now:.3g} s "
            f"({now / was - 1:+.0%})",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    return what


def _of_sizes(numbers: list[int], what: Simulated) -> list[Outcome]:
    """Simulate the placements on each number of GPUs.

    Raises ConfigError where the run does not fit on any.
    """
    search = Search(what.workload, what.costs)
    ways = [
        way
        for number in numbers
        for way in (
            partial(search.taking_turns, number),
            *(partial(search.best, number, staleness) for staleness in STALENESS),
        )
    ]
    label = f"simulating on {len(numbers)} numbers of GPUs"
    outcomes = list(track((way() for way in ways), label, total=len(ways), unit="placements"))
    there = [one for one in outcomes if one is not None]
    if not there:
        engine, learner = what.costs.engine, what.costs.learner
        raise ConfigError(
            f"--gpus: an engine has {engine.gpus} GPUs and learners need {learner.least_ranks}; "
            f"{max(numbers)} are too few"
        )
    return there
