"""Kills commands at random moments, starts them again, and counts what that cost.

    python benchmarks/chaos_commands.py [--kills 60] [--kinds collect eval] [--seed 0] [--json FILE]

`benchmarks/chaos.py` does this to runs of several algorithms and compares their weights. Here it is
done to what surrounds a run: its first start, stages, `collect`, `eval`, `data`, a finished run
that is made longer, and an `eval` beside a run that prunes its checkpoints. Each command first runs
undisturbed. Then it is started, ended by a random signal after a random share of that time, and
started again by the same command until it ends by itself. What has to come out: everything once, no
traceback, and an end. Status 1 if anything else came out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from rolecall.data.data_locations import locate
from rolecall.data.files import read_rows

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143)  # what a signal leaves
GROUPS, ATTEMPTS, TASKS, SAMPLES, ROWS = 4, 4, 4, 2, 20_000
SMALL = (
    "trainer.save_every=1", f"rollout.groups={GROUPS}", f"rollout.group_size={ATTEMPTS}",
    f"evaluation.tasks={TASKS}", f"evaluation.samples={SAMPLES}", "evaluation.k=1",
)  # fmt: skip
STAGES = """
extends: math_alone
stages:
- {name: one, trainer: {steps: 1}}
- {name: rows, from: one, collect: {}}
- {name: two, trainer: {steps: 1}}
- {name: test, evaluate: true}
"""
LONGEST_S = 300.0
MOST_STARTS = 20  # of one command, the last ones undisturbed


@dataclass(slots=True)
class Found:
    """What came out of one kind."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    lost: int = 0  # episodes, rows and records that are not there
    doubled: int = 0  # that are there more than once
    tracebacks: int = 0
    hangs: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.tracebacks or self.hangs or self.wrong)


@dataclass(slots=True)
class Case:
    """One command in a folder of its own."""

    folder: Path
    command: list[str]
    check: Callable[[Path, Found], None]  # what it has come to, at the end
    look: Callable[[Path, Found], None] = lambda folder, found: None  # after each kill
    beside: Callable[[], subprocess.Popen[bytes]] | None = None  # what runs meanwhile


def start(folder: Path, command: list[str], *, name: str = "out") -> subprocess.Popen[bytes]:
    with (folder / f"{name}.txt").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "rolecall", *command],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder,
            stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_take_interrupts,
        )  # fmt: skip


def _take_interrupts() -> None:
    """A shell's background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(process: subprocess.Popen[bytes], found: Found) -> int:
    try:
        return process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        found.hangs += 1
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def disturbed(case: Case, found: Found, *, most: int, whole_s: float, chance: random.Random) -> int:
    """Run a command to its end, with up to `most` kills on its way; how many there were."""
    given = 0
    beside = case.beside() if case.beside is not None else None
    for _ in range(MOST_STARTS):
        process = start(case.folder, case.command)
        if given < most:
            try:
                process.wait(chance.uniform(0.02, 1.0) * whole_s)
            except subprocess.TimeoutExpired:
                how = chance.choice(SIGNALS)
                process.send_signal(how)
                found.kills[how.name] += 1
                given += 1
        status = ended(process, found)
        if status == 0:
            break
        if status not in ENDED:
            found.wrong.append(f"{case.folder.name}: status {status}")
            break
        case.look(case.folder, found)
    else:
        found.wrong.append(f"{case.folder.name}: it did not come to its end")
    if beside is not None and (status := ended(beside, found)) != 0:
        found.wrong.append(f"{case.folder.name}: what ran beside it ended with status {status}")
    for out in case.folder.glob("*.txt"):
        found.tracebacks += out.read_text(errors="replace").count("Traceback (most recent call")
    return given


def count(present: Counter[object], expected: int, found: Found) -> None:
    """Note what is missing of so many things, and what is there twice."""
    found.lost += max(0, expected - len(present))
    found.doubled += sum(number - 1 for number in present.values())


def check_run(run: Path, found: Found, *, steps: int) -> None:
    """Every step, episode and evaluation once, and the end of the run."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    count(Counter(r["step"] for r in records if r["kind"] == "step"), steps, found)
    tests = Counter((r["when"], r["step"]) for r in records if r["kind"] == "evaluation")
    found.doubled += sum(number - 1 for number in tests.values())
    found.lost += ("after", steps) not in tests
    turns: Counter[object] = Counter()
    attempts: set[object] = set()
    for file in sorted((run / "episodes").glob("*.parquet")):
        for row in pq.read_table(file, columns=["step", "task", "attempt", "turn"]).to_pylist():
            turns[row["turn"]] += 1
            attempts.add((row["step"], row["task"], row["attempt"]))
    count(turns, 0, found)
    found.lost += steps * GROUPS * ATTEMPTS - len(attempts)
    if json.loads((run / "summary.json").read_text())["steps"] != steps:
        found.wrong.append(f"{run}: its summary is of another number of steps")


def check_rows(file: Path, found: Found, *, expected: int) -> None:
    count(Counter(row["id"] for _, row in read_rows(file)), expected, found)
    if left := [path.name for path in file.parent.iterdir() if path.name.startswith(".rows")]:
        found.wrong.append(f"{file.parent.name}: {left} stayed")


def check_evaluation(folder: Path, found: Found) -> None:
    """Every attempt once, and nothing unfinished."""
    evaluated = folder / "run" / "evaluated"
    [file] = evaluated.glob("evaluation-*.parquet")
    rows = pq.read_table(file, columns=["task", "attempt", "turn"]).to_pylist()
    count(Counter(row["turn"] for row in rows), 0, found)
    count(Counter({(row["task"], row["attempt"]): 1 for row in rows}), TASKS * SAMPLES, found)
    if list(evaluated.glob("unfinished-*")):
        found.wrong.append(f"{folder.name}: an unfinished evaluation stayed")


def check_stages(folder: Path, found: Found) -> None:
    names = [one["name"] for one in json.loads((folder / "run/summary.json").read_text())["stages"]]
    if names != ["one", "rows", "two", "test"]:
        found.wrong.append(f"{folder.name}: stages {names}")
    for name in ("one", "two"):
        check_run(folder / "run" / name, found, steps=1)
    rows = read_rows(folder / "run" / "rows" / "data.jsonl")
    count(Counter(row["id"] for _, row in rows), GROUPS * ATTEMPTS, found)


def look_at_data(folder: Path, found: Found) -> None:
    """What is found after a kill is whole or nothing."""
    for name in ("data/set", "data"):
        try:
            rows = sum(1 for _ in read_rows(locate(str(folder / name), split="train")))
        except ValueError:
            continue
        found.lost += ROWS - rows
        if rows != ROWS:
            found.wrong.append(f"{folder.name}: {rows} of {ROWS} rows were found")


def check_data(folder: Path, found: Found) -> None:
    look_at_data(folder, found)
    names = sorted(path.name for path in (folder / "data").iterdir())
    inside = sorted(path.name for path in (folder / "data/set").iterdir())
    if (names, inside) != (["set"], ["test.jsonl", "train.jsonl"]):
        found.wrong.append(f"{folder.name}: {names} {inside} are there")


class Kinds:
    """Makes the cases; what they begin with is made once."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self._finished: Path | None = None
        self.names: dict[str, Callable[[Path], Case]] = {
            "first": self.first, "stages": self.stages, "collect": self.collect,
            "eval": self.evaluate, "data": self.data, "longer": self.longer,
            "pruning": self.pruning,
        }  # fmt: skip

    def finished(self, folder: Path) -> None:
        """Put a finished run of one step there."""
        if self._finished is None:
            self._finished = self.top / "finished"
            self._finished.mkdir()
            made = start(
                self._finished,
                ["train", "math_alone", *SMALL, "trainer.steps=1", "--output", "run"],
            )
            if made.wait(LONGEST_S) != 0:
                raise SystemExit((self._finished / "out.txt").read_text())
        shutil.copytree(self._finished / "run", folder / "run")

    def first(self, folder: Path) -> Case:
        command = ["train", "math_alone", *SMALL, "trainer.steps=1", "--output", "run"]
        return Case(folder, command, lambda place, f: check_run(place / "run", f, steps=1))

    def stages(self, folder: Path) -> Case:
        (folder / "staged.yaml").write_text(STAGES)
        return Case(folder, ["train", "staged.yaml", *SMALL, "--output", "run"], check_stages)

    def collect(self, folder: Path) -> Case:
        command = ["collect", "math_alone", *SMALL, "--output", "rows.jsonl"]
        expected = GROUPS * ATTEMPTS
        return Case(
            folder, command, lambda place, f: check_rows(place / "rows.jsonl", f, expected=expected)
        )

    def evaluate(self, folder: Path) -> Case:
        self.finished(folder)
        return Case(folder, ["eval", "run"], check_evaluation)

    def data(self, folder: Path) -> Case:
        rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(ROWS)]
        source = folder / "given.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = ("--from", f"train={source}", "--from", f"test={source}")
        return Case(
            folder, ["data", "gsm8k", *given, "--output", "data/set"], check_data, look_at_data
        )

    def longer(self, folder: Path) -> Case:
        self.finished(folder)
        return Case(folder, ["train", "run", "trainer.steps=3"], check_longer)

    def pruning(self, folder: Path) -> Case:
        """The run saves after each step and keeps one checkpoint while it is evaluated."""
        self.finished(folder)

        def train() -> subprocess.Popen[bytes]:
            longer = ("trainer.steps=12", "trainer.keep=1")
            return start(folder, ["train", "run", *longer], name="beside")

        return Case(
            folder, ["eval", "run"],
            lambda place, f: check_run(place / "run", f, steps=12), beside=train,
        )  # fmt: skip


def check_longer(folder: Path, found: Found) -> None:
    check_run(folder / "run", found, steps=3)
    chapters = (folder / "run/chapters.jsonl").read_text().splitlines()
    found.doubled += len(chapters) - 1


def tried(
    kinds: Kinds, name: str, *, kills: int, chance: random.Random, whole_s: float | None = None
) -> Found:
    """One kind with so many kills; undisturbed before that, unless its time is known."""
    found = Found()
    given = 0
    while given < kills or not found.runs:
        folder = kinds.top / f"{name}-{found.runs}"
        folder.mkdir()
        case = kinds.names[name](folder)
        began, is_measured = time.monotonic(), whole_s is not None
        most = min(3, kills - given) if is_measured else 0
        given += disturbed(case, found, most=most, whole_s=whole_s or LONGEST_S, chance=chance)
        if not is_measured:
            whole_s = time.monotonic() - began
        found.runs += 1
        if not found.hangs and not found.wrong:
            case.check(folder, found)
        if found.is_clean:
            shutil.rmtree(folder)
        if found.runs == 1 and not found.is_clean:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--kinds", nargs="*", choices=Kinds(Path()).names, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kinds = Kinds(Path(tempfile.mkdtemp(prefix="chaos-commands-")))
    names = given.kinds or list(kinds.names)
    chance, whole = random.Random(given.seed), {}
    print(f"{'kind':9} {'kills':>6} {'runs':>5} {'lost':>5} {'twice':>6} {'tracebacks':>11} hangs")
    for number, name in enumerate(names):
        share = given.kills * (number + 1) // len(names) - given.kills * number // len(names)
        found = whole[name] = tried(kinds, name, kills=share, chance=chance)
        print(
            f"{name:9} {sum(found.kills.values()):6} {found.runs:5} {found.lost:5} "
            f"{found.doubled:6} {found.tracebacks:11} {found.hangs:5}",
            flush=True,
        )
        for wrong in found.wrong:
            print(f"  ! {wrong}", flush=True)
    if given.json:
        # `asdict` of a Counter counts its items.
        plain = {n: asdict(found) | {"kills": dict(found.kills)} for n, found in whole.items()}
        given.json.write_text(json.dumps(plain, indent=2) + "\n")
    bad = not all(found.is_clean for found in whole.values())
    print(f"folders: {kinds.top}" if bad else "as it must be")
    if not bad:
        shutil.rmtree(kinds.top)
    sys.exit(bad)


if __name__ == "__main__":
    main()
