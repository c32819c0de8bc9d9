"""Measures the server of `rolecall watch` on a run of many turns, which it writes first.

python benchmarks/watch.py [--turns 1000000] [--steps 2000] [--folder build/watch]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from pyarrow import parquet

from rolecall.core.credit import Compared
from rolecall.core.types import Episode, Task, Turn
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.run_folder import RunFolder

TOKENS = 40  # of a turn
GROUP = 8  # attempts at a task
RUNS = 500  # in one list
TEXT = "so then 12 + 30 is 42 hence the answer boxed wait check again no yes because"


def write_run(folder: Path, *, turns: int, steps: int) -> None:
    """Write a run whose steps are copies of one, with other ids, numbers and words."""
    run = RunFolder(folder)
    run.episodes.mkdir(parents=True)
    team = {name: {"policy": "small", "trainable": True} for name in ("solver", "verifier")}
    config = {"team": team, "trainer": {"steps": steps}, "algorithm": "drmas"}
    run.config.write_text(yaml.safe_dump(config | {"environment": "math"}))
    template = _template(run, turns // steps // 2)
    rng = np.random.default_rng(0)
    with run.metrics.open("w") as metrics:
        for step in range(1, steps + 1):
            table = _change(template, step, rng)
            parquet.write_table(table, run.episode_file(step), compression="zstd")
            record = {"kind": "step", "step": step, "score": float(rng.random())}
            record |= {f"agent/{agent}/reward": float(rng.random()) for agent in team}
            record |= {f"measure/{n}": float(rng.random()) for n in range(60)}
            metrics.write(json.dumps(record) + "\n")


def _template(run: RunFolder, episodes: int) -> pa.Table:
    file = run.path / "template.parquet"
    write_parquet(file, [_make_episode(number) for number in range(episodes)], step=0)
    table = parquet.read_table(file)
    file.unlink()
    return table


def _make_episode(number: int) -> Episode:
    task, attempt = f"task-{number // GROUP}", number % GROUP
    name = f"STEP:{task}:{attempt}"
    made = Episode(name, Task(task, "How much is 12 + 30?", "42", {"source": "sums"}), attempt, 0)
    made.rewards = made.scores = {"team": float(number % 3 == 0)}
    for place, agent in enumerate(("solver", "verifier")):
        turn = Turn(f"{name}/{place}", task, name, agent, "small", (place,))
        turn.prompt, turn.tokens = np.arange(60, dtype=np.int32), np.arange(TOKENS, dtype=np.int32)
        turn.logprobs = np.zeros(TOKENS, np.float32)
        turn.versions = np.zeros(TOKENS, np.int32)
        turn.text, turn.finish = TEXT, "stop"
        turn.reset_credit()
        turn.give_credit(Compared(made.rewards["team"], 0.3, n=GROUP, std=0.4))
        made.turns.append(turn)
    return made


def _change(table: pa.Table, step: int, rng: np.random.Generator) -> pa.Table:
    """Return the step's own rows: ids, words, advantages and log-probs differ."""
    rows = len(table)
    words = rng.choice(TEXT.split(), size=(rows, 30))
    texts = [" ".join(row) for row in words]
    texts[step % rows] += f" needle{step}"
    logprobs = pa.array(-rng.exponential(size=rows * TOKENS).astype(np.float32))
    changed = {
        "step": pa.array(np.full(rows, step, np.int32)),
        "text": pa.array(texts),
        "advantage": pa.array(rng.normal(size=rows)),
        "logprobs": pa.ListArray.from_arrays(
            pa.array(np.arange(rows + 1, dtype=np.int32) * TOKENS), logprobs
        ),
    }
    for name in ("episode", "turn"):
        ids = table[name].to_pylist()
        changed[name] = pa.array([one.replace("STEP", str(step)) for one in ids])
    for name, column in changed.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def write_many(folder: Path, *, runs: int) -> None:
    """Write runs of a sweep, each with the keys and the metrics of a small team."""
    for number in range(runs):
        run = RunFolder(folder / f"run-{number:03d}")
        run.path.mkdir(parents=True)
        team = {name: {"policy": "small", "trainable": True} for name in ("solver", "verifier")}
        keys = {f"key_{n}": {"a": n, "b": 0.5, "c": None, "d": f"text {n}"} for n in range(30)}
        config = {"team": team, "trainer": {"steps": 50, "seed": number}, "rollout": keys}
        run.config.write_text(yaml.safe_dump(config | {"algorithm": "drmas"}))
        rng = np.random.default_rng(number)
        with run.metrics.open("w") as metrics:
            for step in range(1, 51):
                record = {"kind": "step", "step": step, "score": float(rng.random())}
                record |= {f"measure/{n}": float(rng.random()) for n in range(60)}
                metrics.write(json.dumps(record) + "\n")


class Server:
    """A server in a process of its own, whose cache of indexes is a folder of its own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "rolecall", "watch", str(folder), "--no-open"]
        environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.DEVNULL, env=environment
        )
        while True:
            try:
                self.ask("session")
                return
            except OSError:
                time.sleep(0.05)

    def open(self, question: str, **query: object):
        words = urllib.parse.urlencode(query)
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/{question}?{words}")

    def ask(self, question: str, **query: object) -> tuple[float, bytes]:
        """Return the seconds that an answer takes, and the answer."""
        began = time.perf_counter()
        with self.open(question, **query) as answer:
            body = answer.read()
        return time.perf_counter() - began, body

    def search(self, q: str) -> tuple[float, float, int]:
        """Return seconds to the first hit, to the end of the search, and the matches."""
        began, first, line = time.perf_counter(), 0.0, b"{}"
        with self.open("find", run="run", q=q, limit=200) as answer:
            for line in answer:
                if not first and b'"hit":{' in line:
                    first = time.perf_counter() - began
        return first, time.perf_counter() - began, json.loads(line)["matches"]

    @property
    def megabytes(self) -> float:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure(folder: Path, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        server = Server(folder, Path(cache))
        figures = {"cold: newest step, s": server.ask("step", run="run")[0]}
        figures["cold: the run's page, s"] = server.ask("run", run="run")[0]
        began = time.perf_counter()
        _, _, matches = server.search("adv>3.5")
        figures["cold: all indexed, s"] = time.perf_counter() - began
        figures["turns that match"] = matches
        figures["megabytes, indexed"] = server.megabytes
        server.close()
        server = Server(folder, Path(cache))
        figures["warm: the run's page, s"] = server.ask("run", run="run")[0]
        figures["warm: all filtered, s"] = server.search("adv>3.5")[1]
        times = sorted(
            server.search(f"agent:solver step:{n}..{n + 400} adv>{n / 1000:.2f} score>0")[1]
            for n in range(100, steps - 400, max(1, (steps - 500) // 20))
        )
        figures["filter median, s"] = times[len(times) // 2] if times else 0.0
        figures["filter p95, s"] = times[int(len(times) * 0.95) - 1] if times else 0.0
        first, whole, _ = server.search("answer boxed")
        figures["search: first hit, s"], figures["search: whole run, s"] = first, whole
        figures["a rare word: whole run, s"] = server.search(f"needle{steps // 3}")[1]
        episode = f"{steps // 2}:task-3:1"
        opened = [server.ask("talk", run="run", step=steps // 2, episode=episode)[0] for _ in "123"]
        figures["open an episode, s"] = min(opened)
        figures["any step, s"] = server.ask("step", run="run", step=steps // 2)[0]
        figures["spikes of a step, s"] = server.ask("spikes", run="run", step=steps // 2)[0]
        figures["changes, s"] = server.ask("changes", run="run", after="")[0]
        figures["megabytes, at the end"] = server.megabytes
        server.close()
    return figures


def measure_list(folder: Path) -> dict[str, float]:
    """Ask for the list of many runs three times: all are read once."""
    with tempfile.TemporaryDirectory() as cache:
        server = Server(folder, Path(cache))
        times = [server.ask("runs")[0] for _ in range(3)]
        figures = {f"list of {RUNS} runs, s": times[0], "the list again, s": min(times[1:])}
        server.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path("build/watch"))
    options = parser.parse_args()
    run = options.folder / "run"
    if not run.is_dir():
        shutil.rmtree(options.folder, ignore_errors=True)
        write_run(run, turns=options.turns, steps=options.steps)
    many = options.folder.with_name(f"{options.folder.name}-many")
    if not many.is_dir():
        write_many(many, runs=RUNS)
    figures = measure(options.folder, options.steps) | measure_list(many)
    for name, value in figures.items():
        print(f"{name:32} {value:10.3f}")


if __name__ == "__main__":
    main()
