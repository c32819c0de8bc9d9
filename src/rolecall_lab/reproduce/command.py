"""`rolecall reproduce`: trains what a paper trained, and shows ours beside what it published."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.markdown import Markdown
from rich.table import Table

from rolecall.config.load import load
from rolecall.core.errors import ConfigError, nearest
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.memory.check import check_room
from rolecall.runs.evaluate import evaluate
from rolecall.runs.one_run import make_room
from rolecall.runs.plan import device_memory
from rolecall.runs.train import train
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import Activity, activity
from rolecall.setup.open_environment import open_components
from rolecall.setup.plan import load_plan
from rolecall.setup.run_length import limit_steps
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.whole_files import write_atomically
from rolecall_lab.proofs.all import prove
from rolecall_lab.proofs.claims import show_claims
from rolecall_lab.reproduce import drmas, figures
from rolecall_lab.reproduce.found import RunFound
from rolecall_lab.reproduce.papers import PAPERS
from rolecall_lab.reproduce.report import report
from rolecall_lab.reproduce.settings import Setting
from rolecall_lab.seeds import MOST_SEEDS

console = PlainConsole()
TABLES, FIGURES = (1, 2, 3), (1, 3, 4)
DRMAS = "drmas"
Found = dict[str, list[RunFound]]


def reproduce_claims(paper: str) -> list[dict[str, Any]]:
    """Return the result of another paper on its game.

    Raises ConfigError for a paper that is not listed.
    """
    if paper not in PAPERS:
        raise ConfigError(f"no paper {paper!r}; {nearest(paper, [DRMAS, *PAPERS])}")
    listed = PAPERS[paper]
    console.print(f"{listed.title} (arXiv {listed.arxiv}), as in `rolecall prove {listed.proof}`",
                  highlight=False, soft_wrap=True)  # fmt: skip
    return show_claims(prove([listed.proof]))


def reproduce_drmas(
    overrides: list[str],
    *,
    tables: Sequence[int],
    shown: Sequence[int],
    size: drmas.Size,
    seeds: int,
    output: Path | None,
    only_check: bool,
    gpus: int | None,
    memory_gb: float | None,
) -> dict[str, Any]:
    """Write the configs, check all of them, train and evaluate what is not done yet, and report.

    `tables`, `shown`: numbers of tables and of figures, all if neither is given. `gpus` of
    `memory_gb` stand for this machine's devices, which needs `only_check`. Raises ConfigError with
    all that does not fit before anything is trained.
    """
    parts = _parts(tables, shown, size)
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds {seeds}: write 1 to {MOST_SEEDS}")
    if (gpus or memory_gb) and not only_check:
        raise ConfigError("--gpus and --memory name another machine; add --check")
    top = output or Path("reproduced") / f"drmas-{size}"
    settings = {s.name: s for of in parts.values() for s in of}
    files = {name: top / "configs" / f"{name}.yaml" for name in settings}
    with activity("checking configs", total=len(settings)) as now:
        _prepare(settings, files, overrides, now, gpus=gpus, memory_gb=memory_gb)
    if only_check:
        return {"configs": {name: str(file) for name, file in files.items()}}
    results: Found = {}
    runs = [
        (seed, name)
        for seed in range(seeds)
        for name, setting in settings.items()
        if setting.algorithm != "untrained" or not seed
    ]
    with activity("runs of the paper", total=len(runs)) as now:
        for seed, name in runs:
            one = _run(settings[name], files[name], top / "runs" / name, overrides, seed=seed)
            results.setdefault(name, []).append(one)
            _write(top, parts, results, newest=name)
            now.done += 1
    console.print(Markdown((top / "report.md").read_text()))
    console.print(f"Wrote {top}: report.md, results.json, configs, runs", soft_wrap=True)
    return _plain(results)


def _parts(
    tables: Sequence[int], shown: Sequence[int], size: drmas.Size
) -> dict[tuple[str, int], list[Setting]]:
    """Return the tables and figures that are asked for, with the settings of each.

    Raises ConfigError for a number that does not exist.
    """
    for name, numbers, offered in (("table", tables, TABLES), ("figure", shown, FIGURES)):
        for number in numbers:
            if number not in offered:
                raise ConfigError(
                    f"--{name} {number}: there are {', '.join(map(str, offered))} to reproduce"
                )
    if not tables and not shown:
        tables, shown = TABLES, FIGURES
    parts = {("table", number): drmas.table(number, size) for number in tables}
    return parts | {("figure", number): drmas.figure(number, size) for number in shown}


def _prepare(
    settings: dict[str, Setting],
    files: dict[str, Path],
    overrides: list[str],
    now: Activity,
    *,
    gpus: int | None,
    memory_gb: float | None,
) -> None:
    """Write each config and check its rows and its memory. Raises ConfigError with all problems."""
    table = Table("setting", "steps", "tasks", "held-out tasks", title="What is trained")
    problems: dict[str, list[str]] = {}
    for name, setting in settings.items():
        _write_config(setting, files[name], setting.config)
        now.done += 1
        try:
            plan = load_plan(files[name], overrides)
            config = plan.config
            check_room(config, None if gpus is None and memory_gb is None else
                       device_memory(config, gpus=gpus, memory_gb=memory_gb))  # fmt: skip
            tasks = open_components(plan).tasks
        except ConfigError as error:
            for line in error.problems:  # alike in several configs: told once, without the place
                problem = re.sub(rf"^{re.escape(str(files[name]))}(:\d+)?: ", "", line)
                problems.setdefault(problem, []).append(name)
            continue
        number = len(tasks.sampler.train)
        trained = "" if setting.algorithm == "untrained" else str(limit_steps(config, number))
        table.add_row(name, trained, "without end" if number >= ENDLESS else str(number),
                      str(len(tasks.test)))  # fmt: skip
    if table.rows:
        console.print(table)
    if problems:
        raise ConfigError(*(f"{line} ({_some(names)})" for line, names in problems.items()))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"in {names[0]}{more}"


def _write_config(setting: Setting, file: Path, config: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(config, sort_keys=False, width=100)
    write_atomically(file, f"# Dr. MAS (2602.08847): {setting.description}.\n{text}")


def _run(
    setting: Setting, config: Path, folder: Path, overrides: list[str], *, seed: int
) -> RunFound:
    """Train and evaluate one setting with one seed, or take what is there already."""
    tasks = load(config, overrides).evaluation.tasks
    eval_overrides = [f"evaluation.tasks={tasks}"]
    if setting.algorithm == "untrained":
        output = folder / "evaluated"
        kept = output / "evaluation-000000.json"
        evaluation = _kept(kept, overrides) or evaluate(
            str(config), overrides, checkpoint_name="latest", output=output
        )
        return RunFound.from_evaluation(seed, evaluation, [])
    run = RunFolder(folder / f"seed-{seed}")
    train_overrides = [*overrides, f"trainer.seed={seed}", "evaluation.tasks=0"]
    summary = train(str(config), train_overrides, output=run.path, resume=False)
    make_room()
    kept = run.evaluated / f"evaluation-{summary['steps']:06d}.json"
    evaluation = _kept(kept, eval_overrides) or evaluate(
        str(run.path), eval_overrides, checkpoint_name="latest"
    )
    make_room()
    return RunFound.from_evaluation(
        seed, evaluation, (r for r in run.read_metrics() if r["kind"] == "step")
    )


def _kept(file: Path, overrides: list[str]) -> dict[str, Any] | None:
    """Return the evaluation that an earlier command has finished, made as this one would be."""
    if not file.is_file():
        return None
    evaluation: dict[str, Any] = json.loads(file.read_text())
    return evaluation if evaluation["overrides"] == overrides else None


def _write(
    top: Path, parts: dict[tuple[str, int], list[Setting]], results: Found, *, newest: str
) -> None:
    """Write what is there so far, so that a command that is stopped leaves it.

    Only the figures that show the newest run are drawn; the others stay as they were.
    """
    sections = [report(kind, number, of, results) for (kind, number), of in parts.items()]
    for (kind, number), of in parts.items():
        if kind == "figure" and any(setting.name == newest for setting in of):
            figures.draw(number, of, results, top / f"figure-{number}.png")
    write_atomically(top / "report.md", "\n\n".join(sections) + "\n")
    write_atomically(top / "results.json", json.dumps(_plain(results), indent=2) + "\n")


def _plain(results: Found) -> dict[str, Any]:
    return {name: [asdict(run) for run in runs] for name, runs in results.items()}
