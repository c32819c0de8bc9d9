"""Runs of the maths team beside what `rolecall simulate` says of them.

    python benchmarks/simulated_vs_real.py [--repeats 3] [--steps 8] [--only SETTING ...]
        [--json FILE] [--folder FOLDER] [--wait CORES]

For each placement one run calibrates; runs of other sizes are then predicted and done. A few are
also predicted from the run of another placement. The published figures of
`examples/nemo_rl_30b_a3b.yaml` follow, which no run here repeats. `--folder` keeps the runs, and a
second call continues there. The machine must have nothing else to do: the last column says how
many cores other processes had during the busiest of a setting's runs, those of Ray included, and
`--wait CORES` waits before each run until others have had less than that for ten seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rolecall.config.load import find, load
from rolecall.storage.run_folder import RunFolder
from rolecall_lab.simulate.calibration import steady
from rolecall_lab.simulate.measured import read_measured
from rolecall_lab.simulate.records import read_steps
from rolecall_lab.simulate.run import Placement
from rolecall_lab.simulate.sources import simulate_figures, simulate_run
from rolecall_lab.simulate.splits import outcome

SIMULATED_STEPS = 12
OTHERS = "others.txt"  # in a run's folder: the cores that other processes had
RAY = ("cluster.name=ray", "cluster.address=local", "engine.replicas=2", "engine.cache_gb=0.25")
RANKS = ("learner.name=replicated", "learner.ranks=2", "learner.device=cpu")
STALE = ("trainer.max_staleness=1", "engine.separate_weights=true")
PLACEMENTS: dict[str, tuple[str, ...]] = {
    "here": (), "two engines": RAY, "two ranks": RANKS, "staleness 1": STALE,
}  # fmt: skip
SHORT = ("team.solver.sampling.max_tokens=12", "team.verifier.sampling.max_tokens=12")
# Name: the placement that calibrates, the placement that is predicted, and the sizes.
SETTINGS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "8 groups": ("here", "here", ("rollout.groups=8",)),
    "48 groups": ("here", "here", ("rollout.groups=48",)),
    "16 attempts": ("here", "here", ("rollout.group_size=16",)),
    "12 tokens at most": ("here", "here", SHORT),
    "two engines, 48 groups": ("two engines", "two engines", ("rollout.groups=48",)),
    "two ranks, 48 groups": ("two ranks", "two ranks", ("rollout.groups=48",)),
    "staleness 1, 48 groups": ("staleness 1", "staleness 1", ("rollout.groups=48",)),
    "staleness 1, from a run without": ("here", "staleness 1", ()),
    "two ranks, from a run of one": ("here", "two ranks", ()),
    "two engines, from a run of one": ("here", "two engines", ()),
}
# (what, placement, GPUs, seconds of a step that were published)
PUBLISHED = (
    ("NeMo-RL, one step off, 32 H100 (calibrated)", Placement(8, 16, staleness=1), 32, 152.0),
    ("NeMo-RL, on policy, 32 H100", Placement(16, 32, together=True), 32, 192.0),
    ("NeMo-RL, eight steps off, 192 H100", Placement(32, 128, staleness=8), 192, 34.5),
)


@dataclass(slots=True)
class Compared:
    """One setting: seconds of a step, simulated and as it was."""

    setting: str
    simulated_s: float
    measured_s: float
    least_s: float = 0.0
    most_s: float = 0.0
    others: float = 0.0
    """Cores that other processes had."""

    @property
    def line(self) -> str:
        off = f"{self.simulated_s / self.measured_s - 1:+.0%}"
        spread = f"{self.least_s:.2f} .. {self.most_s:.2f}" if self.least_s else ""
        return (
            f"| {self.setting} | {self.simulated_s:.2f} | {self.measured_s:.2f} | {off} "
            f"| {spread} | {self.others:.2f} |"
        )


@dataclass(frozen=True, slots=True)
class Busy:
    """Seconds so far: of the clock, of all cores' work, and of this process and its children."""

    clock: float
    all_cores: float
    own: float

    @classmethod
    def now(cls) -> Busy:
        user, nice, system, _, _, irq, soft, steal = map(
            int, Path("/proc/stat").read_text().split()[1:9]
        )
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(
            time.monotonic(),
            (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK"),
            sum(one.ru_utime + one.ru_stime for one in used),
        )


def _cores_of_others(begun: Busy, *, after: float = 0.0) -> float:
    """Cores that others had since then, `after` some seconds."""
    time.sleep(after)
    now = Busy.now()
    theirs = (now.all_cores - begun.all_cores) - (now.own - begun.own)
    return max(0.0, theirs / max(1e-9, now.clock - begun.clock))


class Runs:
    """Runs that are done once for each of their repetitions."""

    def __init__(self, folder: Path, *, steps: int, wait: float) -> None:
        self.folder, self.steps, self.wait = folder, steps, wait
        self.others = 0.0  # the most cores that others had, during the runs since it was set to 0

    def run(self, placement: str, sizes: Sequence[str], repeat: int) -> RunFolder:
        """Raises RuntimeError with the last line of a run that failed."""
        name = "-".join([placement, *(size.split(".")[-1] for size in sizes), str(repeat)])
        path = self.folder / name.replace(" ", "-").replace("=", "-")
        if not (path / "summary.json").is_file():
            command = [
                sys.executable, "-m", "rolecall", "train", "math", *PLACEMENTS[placement], *sizes,
                f"trainer.steps={self.steps}", "trainer.save_every=1000", "evaluation.tasks=0",
                f"trainer.seed={repeat}", "--output", str(path),
            ]  # fmt: skip
            threads = os.environ.get("OMP_NUM_THREADS", "1")
            while self.wait and _cores_of_others(Busy.now(), after=10.0) > self.wait:
                pass
            begun = Busy.now()
            done = subprocess.run(
                command, capture_output=True, text=True,
                env=os.environ | {"OMP_NUM_THREADS": threads},
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}")
            (path / OTHERS).write_text(f"{_cores_of_others(begun):.3f}")
        if (path / OTHERS).is_file():
            self.others = max(self.others, float((path / OTHERS).read_text()))
        return RunFolder.existing(path)

    def step_s(self, folder: RunFolder, placement: str) -> float:
        """Median of the run's steady steps; of pairs, where long and short ones take turns."""
        turns = 2 if placement == "staleness 1" else 1
        middle = [step.step_s for step in steady(read_steps(folder), turns - 1)]
        return median(sum(middle[n : n + turns]) / turns for n in range(len(middle) - turns + 1))


def compare(runs: Runs, setting: str, *, repeats: int) -> Compared:
    """Medians over the repetitions of predictions and of runs, each with seeds of its own."""
    calibrating, placement, sizes = SETTINGS[setting]
    predicted, measured = [], []
    runs.others = 0.0
    for repeat in range(repeats):
        source = runs.run(calibrating, (), repeat)
        what = simulate_run(source, [*PLACEMENTS[placement], *sizes], environment_s=0.0, cores=None)
        found = outcome(
            what.workload, what.costs, what.placement, gpus=1, num_steps=SIMULATED_STEPS
        )
        predicted.append(found.step_s)
        measured.append(runs.step_s(runs.run(placement, sizes, repeat), placement))
    return Compared(
        setting, median(predicted), median(measured), min(measured), max(measured), runs.others
    )


def published() -> list[Compared]:
    """The three figures, with those of the file, which is fitted to the first."""
    file = Path(__file__).resolve().parents[1] / "examples/nemo_rl_30b_a3b.yaml"
    sizes = ["rollout.groups=64", "rollout.group_size=32", "rollout.concurrency=100000"]
    what = simulate_figures(load(find("grpo_math"), sizes), read_measured(file), None)
    return [
        Compared(name, outcome(what.workload, what.costs, place, gpus=gpus).step_s, known)
        for name, place, gpus, known in PUBLISHED
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--wait", type=float, default=0.0, metavar="CORES")
    given = parser.parse_args()
    print("| setting | simulated, s | measured, s | off | from .. to | others, cores |")
    print("|---|---|---|---|---|---|")
    found = published()
    for one in found:
        print(one.line, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(given.folder or Path(folder), steps=given.steps, wait=given.wait)
        for setting in given.only:
            found.append(compare(runs, setting, repeats=given.repeats))
            print(found[-1].line, flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
