"""Runs of several kinds in; they are killed at random moments, resumed, and compared.

    python benchmarks/chaos.py [--kills 60] [--kinds ppo tools] [--seed 0] [--json FILE]

Each kind first runs undisturbed. Then runs of it are started again and again and disturbed at a
random moment by SIGKILL, SIGTERM, SIGINT, a stop of two seconds, or the death of their children,
and are resumed until they end. What has to come out: the same weights, critics and moments bit for
bit (of kinds that are deterministic), every episode once, and no process left over. Status 1 if
anything else came out.
"""

from __future__ import annotations

import argparse
import contextlib
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
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq

from rolecall.storage.checkpoint import LATEST, MANIFEST, follow_pointer

SIGNALS = ("KILL", "TERM", "INT", "STOP", "CHILDREN")
MARK = "ROLECALL_CHAOS"  # in the environment of a run and of all that it starts
STEPS, GROUPS, ATTEMPTS = 4, 3, 4
SMALL = (
    f"trainer.steps={STEPS}", "trainer.save_every=1", f"rollout.groups={GROUPS}",
    f"rollout.group_size={ATTEMPTS}", "evaluation.tasks=4", "evaluation.samples=2",
    "evaluation.every=2",
)  # fmt: skip
KINDS: dict[str, tuple[str, ...]] = {
    "synchronous": ("math",),
    "async": ("math", "trainer.max_staleness=1", "engine.separate_weights=true"),
    "ppo": ("math", "algorithm=ppo", "critics.agent.optimizer.lr=1e-3"),
    "adapters": ("math", "policies.solver.adapter.rank=4", "policies.verifier.adapter.rank=4"),
    "tools": ("mathchat",),
    "critics": ("math", "algorithm=mappo", "critics.team.base=tiny:math"),
    "past": (
        "math", "team.verifier.trainable=false",
        "policies.verifier.opponent_pool.of=solver",
        "policies.verifier.opponent_pool.every=1", "policies.verifier.past.keep=2",
    ),
}  # fmt: skip
NOT_DETERMINISTIC = ("async",)
GRACE_S = 5.0  # in which what a killed run started must be gone
LONGEST_S = 300.0


@dataclass(slots=True)
class Found:
    """What came out of the runs of one kind."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    whole_s: float = LONGEST_S  # of the fastest run that nothing disturbed
    equal: int = 0  # runs whose checkpoint has the bits of the undisturbed one
    lost: int = 0  # episodes
    duplicated: int = 0  # turns
    orphans: int = 0  # processes
    wrong: list[str] = field(default_factory=list)


def start(kind: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A run in a process group of its own, and the mark that all its processes carry."""
    mark = uuid4().hex
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rolecall", "train", *KINDS[kind], *SMALL]
    with (folder.parent / f"{folder.name}.out").open("ab") as out:
        process = subprocess.Popen(
            [*command, "--output", str(folder)],
            env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_take_interrupts,
        )  # fmt: skip
    return process, mark


def _take_interrupts() -> None:
    """A shell's background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def marked(mark: str) -> list[int]:
    """Processes that were started by a run and still live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


def disturb(process: subprocess.Popen[bytes], mark: str, how: str) -> None:
    if how == "CHILDREN":
        for number in marked(mark):
            if number != process.pid:
                _send(number, signal.SIGKILL)
    elif how == "STOP":
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
    else:
        process.send_signal(signal.Signals[f"SIG{how}"])


def _send(number: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, what)


def left_over(mark: str) -> int:
    """Processes that outlive their run by more than the grace; they are ended here."""
    deadline = time.monotonic() + GRACE_S
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for number in found:
        _send(number, signal.SIGKILL)
    return len(found)


def checksums(folder: Path) -> dict[str, str]:
    """Of every file of the newest checkpoint; the models' own metadata are left out."""
    newest = follow_pointer(folder / "checkpoints", LATEST)
    assert newest is not None, f"{folder} has no checkpoint"
    return json.loads((newest / MANIFEST).read_text())["sha256"]


def episodes(folder: Path) -> tuple[int, int]:
    """How many episodes are missing, and how many turns are there more than once."""
    rows = [
        row
        for file in sorted((folder / "episodes").glob("*.parquet"))
        for row in pq.read_table(file, columns=["step", "task", "attempt", "turn"]).to_pylist()
    ]
    attempts = {(row["step"], row["task"], row["attempt"]) for row in rows}
    turns = Counter(row["turn"] for row in rows)
    return STEPS * GROUPS * ATTEMPTS - len(attempts), sum(n - 1 for n in turns.values())


def disturbed(kind: str, folder: Path, *, most: int, found: Found) -> None:
    """One run to its end, with up to `most` kills on its way.

    The first comes after a random share of its time; the others, when less is left, earlier.
    """
    given = 0
    while True:
        began, before = time.monotonic(), given
        process, mark = start(kind, folder)
        if given < most:
            try:
                process.wait(random.uniform(0.2, 0.9) * found.whole_s / (given + 1))
            except subprocess.TimeoutExpired:
                how = random.choice(SIGNALS)
                disturb(process, mark, how)
                found.kills[how] += 1
                given += 1
        try:
            status = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            found.wrong.append(f"{folder.name} did not end within {LONGEST_S:g} s")
            process.kill()
            process.wait()
            return
        found.orphans += left_over(mark)
        if status == 0:
            if given == before == 0:
                found.whole_s = min(found.whole_s, time.monotonic() - began)
            return
        if status not in (-9, -15, 130, 143):
            found.wrong.append(f"{folder.name} ended with status {status}")
            if given >= most:
                return


def try_kind(kind: str, *, kills: int, folder: Path) -> Found:
    straight, found = folder / f"{kind}-straight", Found()
    # Twice: the first run may compile kernels, and the second must come to the same.
    for run in (straight, folder / f"{kind}-again"):
        began = time.monotonic()
        process, mark = start(kind, run)
        if process.wait(LONGEST_S) != 0:
            found.wrong.append(f"the undisturbed run failed: {run.with_suffix('.out')}")
            return found
        found.orphans += left_over(mark)
        found.whole_s = min(found.whole_s, time.monotonic() - began)
    expected = checksums(straight)
    if kind not in NOT_DETERMINISTIC and checksums(run) != expected:
        found.wrong.append("two undisturbed runs have different weights")
    while sum(found.kills.values()) < kills:
        run = folder / f"{kind}-{found.runs}"
        most = min(3, kills - sum(found.kills.values()))
        disturbed(kind, run, most=most, found=found)
        found.runs += 1
        lost, duplicated = episodes(run)
        found.lost, found.duplicated = found.lost + lost, found.duplicated + duplicated
        if checksums(run) == expected:
            found.equal += 1
        elif kind not in NOT_DETERMINISTIC:
            found.wrong.append(f"{run.name} has other weights")
        if not found.wrong:
            shutil.rmtree(run)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    random.seed(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(
        f"{'kind':12} {'kills':>6} {'runs':>5} {'equal':>6} {'lost':>5} {'twice':>6} {'orphans':>8}"
    )
    whole: dict[str, Found] = {}
    for number, kind in enumerate(given.kinds):
        kills = given.kills * (number + 1) // len(given.kinds) - (
            given.kills * number // len(given.kinds)
        )
        found = whole[kind] = try_kind(kind, kills=kills, folder=folder)
        equal = "-" if kind in NOT_DETERMINISTIC else found.equal
        print(
            f"{kind:12} {sum(found.kills.values()):6} {found.runs:5} {equal:>6} {found.lost:5} "
            f"{found.duplicated:6} {found.orphans:8}",
            flush=True,
        )
        for wrong in found.wrong:
            print(f"  ! {wrong}", flush=True)
    how = sum((found.kills for found in whole.values()), Counter())
    print("kills:", ", ".join(f"{name} {how[name]}" for name in SIGNALS))
    if given.json:
        plain = {
            kind: {name: getattr(found, name) for name in Found.__slots__}
            for kind, found in whole.items()
        }
        given.json.write_text(json.dumps(plain, indent=2) + "\n")
    bad = any(f.wrong or f.lost or f.duplicated or f.orphans for f in whole.values())
    print(f"folders: {folder}" if bad else "as it must be")
    sys.exit(bad)


if __name__ == "__main__":
    main()
