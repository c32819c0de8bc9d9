"""Says in one line how an actor of Ray ended: exit code or signal where it can be told, and memory.

An actor is no child of ours, and Ray does not pass on the status with which it ended. What can be
known: Python that ends by itself tells Ray its exit code, and that it was sent SIGTERM; handlers
in the actor write signals of crashes (SIGSEGV, SIGABRT, SIGBUS) into its log; Ray says so when its
memory monitor has killed it; the kernel counts whom it killed for memory. What is left without any
of these was ended by SIGKILL or by `os._exit`, which nobody can tell apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rolecall.runtime.logs import last_lines, tail

MOST_TOLD = 600  # characters of an error of Ray
LONGEST = 200  # characters of a line of its log
CRASH = re.compile(r"\*\*\* (SIG[A-Z]+) received")  # as Ray's handler writes it
EXIT = re.compile(r"Worker exits with an exit code (\d+)")
WITHOUT_A_WORD = "Worker unexpectedly exits with a connection error"
SIGTERM = "The process receives a SIGTERM"
UNREACHED = "The actor is temporarily unavailable: "
IN_CREATION = "because of an error raised in its creation task"
MONITOR = "killed due to the node running low on memory"
USED = re.compile(r"was ([\d.]+ ?[KMGT]?B) used / ([\d.]+ ?[KMGT]?B) limit")
OVER = re.compile(r"threshold of \d+B \(([\d.]+%)")
# Where Ray puts what the actor was before why it ended.
PREAMBLE = re.compile(r"^The actor died unexpectedly before finishing this task\. .*? ip: \S+ ")
UNKNOWN = "it ended without a word: by SIGKILL, or os._exit"
CGROUPS = Path("/sys/fs/cgroup")


def describe_death(error: BaseException) -> str:
    """Return what Ray says of an actor's end, in one line."""
    text = " ".join(str(error).split())
    if MONITOR in text:
        return _of_monitor(text)
    if match := EXIT.search(text):
        return "it was ended by SIGTERM" if SIGTERM in text else f"exit code {match[1]}"
    if WITHOUT_A_WORD in text:
        return UNKNOWN
    if IN_CREATION in text:
        last = str(error).strip().splitlines()[-1]
        return f"it could not be made: {last.strip()}"[:MOST_TOLD]
    if UNREACHED in text:
        why = text.partition(UNREACHED)[2].partition(". The task may or may not")[0]
        return f"it could not be reached: {why}"[:MOST_TOLD]
    return PREAMBLE.sub("", text)[:MOST_TOLD]


def _of_monitor(said: str) -> str:
    used, over = USED.search(said), OVER.search(said)
    memory = f": {used[1]} of {used[2]} were used" if used else ""
    limit = f", more than {over[1]} (RAY_memory_usage_threshold)" if over else ""
    return f"Ray's memory monitor killed it, because its machine ran low on memory{memory}{limit}"


@dataclass(frozen=True, slots=True)
class Traces:
    """Holds what an actor has left on its machine."""

    signal: str  # SIGSEGV; empty where no handler wrote one
    oom_kills: int  # since it started: processes that the kernel has killed for memory
    lines: list[str]  # the last ones of its log


def read_traces(log: Path, oom_kills: int) -> Traces:
    """Return an actor's traces, on its machine; `oom_kills`: the count when it started."""
    signals = CRASH.findall(tail(log))
    grown = max(0, count_oom_kills() - oom_kills)
    return Traces(signals[-1] if signals else "", grown, last_lines(log))


def add_cause(why: str, traces: Traces | None) -> str:
    """Return what Ray says, made more precise by what was left, if its machine still answers."""
    if traces is None:
        return why
    if traces.signal:
        why = f"it crashed with {traces.signal}"
    if traces.oom_kills:
        many = "a process" if traces.oom_kills == 1 else f"{traces.oom_kills} processes"
        why += f"; since it started, the kernel has killed {many} of its machine for want of memory"
    return why


def add_log(why: str, traces: Traces | None) -> str:
    if traces is None:
        return f"{why}; its machine says nothing either"
    lines = [line[:LONGEST] for line in traces.lines]
    return why + (f"; its log ends: {' | '.join(lines)}" if lines else "; its log is empty")


def count_oom_kills(membership: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """Count this cgroup's processes that the kernel has killed for want of memory.

    0 where the machine does not say. In a container the cgroup may lie at the root of what is seen.
    """
    for cgroup, file in _cgroups(membership, root):
        for folder in (cgroup, file.parent):
            count = _counter(folder / file.name)
            if count is not None:
                return count
    return 0


def _cgroups(membership: Path, root: Path) -> list[tuple[Path, Path]]:
    """Return the memory cgroups of this process, and their roots' files that count kills."""
    cgroups = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if "memory" in controllers.split(","):
            cgroups.append((root / "memory" / inside, root / "memory" / "memory.oom_control"))
        elif number == "0":
            cgroups.append((root / inside, root / "memory.events"))
    return cgroups


def _counter(file: Path) -> int | None:
    try:
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
