"""How long a command takes to begin: `python benchmarks/start.py [TIMES]`.

Runs `rolecall train math` in processes of its own and says when the table of agents is shown and
when the first pass of sampling begins, in seconds since the process was made. A short run before
them compiles what an installation compiles once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

CHILD = """
import os, sys, time
from importlib.machinery import PathFinder, SourceFileLoader

def seconds():
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

def show_table(module):
    plain = module.agents_table
    module.agents_table = lambda agents: told.append(seconds()) or plain(agents)

def sample(module):
    def step(scheduler):
        print("seconds", *told, seconds(), flush=True)
        os._exit(0)
    module.Scheduler.step = step

told = []
CHANGED = {"rolecall.runs.agents_table": show_table, "rolecall.engines.local.scheduler": sample}

class Loader(SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        CHANGED[module.__name__](module)

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name in CHANGED:
            spec = PathFinder.find_spec(name, path, target)
            spec.loader = Loader(spec.loader.name, spec.loader.path)
            return spec

sys.meta_path.insert(0, Finder)
sys.argv = ["rolecall", "train", "math", "--output", "run"]
from rolecall.cli.main import main
main()
"""


def run(*arguments: str) -> str:
    """What a Python of its own prints."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    run("-m", "rolecall", "train", "math", "trainer.steps=1")
    told = [run("-c", CHILD).rpartition("seconds")[2].split() for _ in range(times)]
    found = [[float(second) for second in seconds] for seconds in told]
    for what, seconds in zip(
        ("table of agents", "first pass"), zip(*found, strict=True), strict=True
    ):
        middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{what}: {middle:.2f} s ({least:.2f} .. {most:.2f}), {times} processes")


if __name__ == "__main__":
    main()
