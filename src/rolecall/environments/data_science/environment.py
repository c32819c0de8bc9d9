"""Poses tasks on tables, runs Python on their files, and scores the submissions."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.interfaces.tool import Tool, wrote
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import GENERATED, gather, generates, list_sources
from rolecall.environments.data_science.generated import SUBMISSION, GeneratedTables, Kind
from rolecall.environments.data_science.missing_files import keep_complete
from rolecall.environments.data_science.rows import (
    modelling_tasks,
    read_grading,
    read_inputs,
    read_truth,
    score_range,
)
from rolecall.grading.further_measures import further_measures
from rolecall.grading.submissions import align, score_predictions
from rolecall.grading.tabular import Invalid, metric_named, normalise
from rolecall.sandbox.base import Limits, Ran, Run
from rolecall.tools.functions import tool
from rolecall.tools.python import Python, describe_run

KINDS: tuple[Kind, ...] = ("regression", "classes", "ranking", "counts")
REQUIRED = {
    "engineer": ("X_train.pkl", "y_train.pkl", "X_test.pkl"),
    "modeler": ("model.pkl",),
    "analyst": (SUBMISSION,),
}


class DataScienceEnvironment:
    """Tables that are `generated`, or DSBench's modelling rows with their files.

    Give the agents the tool `world`.
    """

    def __init__(
        self,
        train: str | list[str] = GENERATED,
        test: str | list[str] = GENERATED,
        prompts: str | None = None,
        root: str | None = None,
        kinds: list[Kind] | None = None,
        test_size: int | None = None,
        url: str | None = None,
        token_env: str | None = None,
        wall_s: float = 25.0,
        memory_mb: int = 2048,
        unenforced: list[str] | None = None,
        by_type: bool = False,
    ) -> None:
        """train, test: `generated`, or local files of DSBench's rows; one, or a list of several.
            Rows whose files are missing are left out and counted.
        prompts: DSBench's file of prompts; by default the one beside the rows.
        root: folder to which the paths of rows are relative; by default that of their file.
        kinds: kinds of generated tables; by default all.
        test_size: generated test tables; by default 100.
        url: address of a SandboxFusion server; by default bubblewrap on this machine.
        token_env: environment variable with that server's bearer token.
        wall_s: most seconds of a call.
        memory_mb: most memory of a call.
        unenforced: limits that this machine need not hold: memory, syscalls.
        by_type: classification and regression are sources of their own, which rollout.stratify and
            evaluations tell apart.

        Options of generated tables are errors where nothing is generated.
        """
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        named = self.sources["train"] + self.sources["test"]
        generates(self.sources, kinds=kinds, test_size=test_size)
        if {*named} == {GENERATED} and (prompts or root or by_type):
            raise ValueError(
                "prompts, root and by_type have no effect, because all tables are generated; "
                "remove them, or name a file in train or test"
            )
        self.kinds, self.test_size = tuple(kinds or KINDS), test_size or 100
        self.prompts = Path(prompts).expanduser() if prompts else None
        self.by_type = by_type
        self.root = Path(root).expanduser() if root else None
        self._python = Python(
            url=url,
            token_env=token_env,
            wall_s=wall_s,
            memory_mb=memory_mb,
            unenforced=unenforced,
        )
        self._used = False

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test"; rows whose files are missing have none.

        Raises ValueError for a missing source, a malformed row, and where no row has its files.
        """

        def read(source: str) -> Sequence[Task]:
            if source == GENERATED:
                tables = GeneratedTables(split, kinds=self.kinds)
                return tables[: self.test_size] if split == "test" else tables
            path = locate(source, split=split)
            tasks = modelling_tasks(
                path, prompts=self.prompts, root=self.root, by_type=self.by_type
            )
            return keep_complete(tasks, path)

        return gather(self.sources[split], read=read)

    def open(self, task: Task, *, seed: int) -> World:
        """Open the world of a task; raises ValueError if a file of the task is missing."""
        return DataScienceWorld(task, self._run, limits=self._python.limits)

    async def _run(self, run: Run) -> Ran:
        sandbox = self._python.sandbox  # made when it is needed first
        self._used = True
        return await sandbox.run(run)

    async def check(self) -> None:
        """Check that a program can be run; raises SandboxError otherwise."""
        await self._python.check()

    async def close(self) -> None:
        if self._used:
            await self._python.sandbox.close()


class DataScienceWorld(World):
    """Carries files from call to call and scores the submission among them at the end.

    Files are bytes here: only the sandbox opens them, but for the submission, which is read as
    CSV. The truth never is among them.
    """

    def __init__(self, task: Task, run: Callable[[Run], Awaitable[Ran]], *, limits: Limits) -> None:
        self.task, self.run, self.limits = task, run, limits
        self.grading = read_grading(task)
        self.inputs = read_inputs(task)
        self.truth = read_truth(task)
        self.baseline, self.best = score_range(task, self.truth)
        self.files = dict(self.inputs)
        self.missing: dict[str, list[str]] = {}  # role -> files it did not leave
        self._lock = asyncio.Lock()  # calls of one message run in their order

    async def fork(self) -> DataScienceWorld:
        fork = copy.copy(self)
        fork.files, fork.missing, fork._lock = dict(self.files), dict(self.missing), asyncio.Lock()
        return fork

    async def reset(self) -> Observation:
        return Observation(self._listing())

    def tools(self) -> list[Tool]:
        @tool(ends_itself=True)
        async def python(code: str) -> str:
            """Run Python code where the files are; you see what it prints."""
            return await self._work(code)

        return [python]

    async def _work(self, code: str) -> str:
        async with self._lock:
            run = Run(code=code, files=dict(self.files), fetch=("**",), limits=self.limits)
            ran = await self.run(run)
            # What a run that was stopped leaves may be half written.
            files = self.files if ran.status == "timeout" else ran.files
            after = {**files, **self.inputs}
            text = describe_run(ran)
            if stale(self.files, after, failed=ran.status != "finished"):
                del after[SUBMISSION]
                text += f"\n[{SUBMISSION} is older than what it was made of: removed]"
            wrote(name for name in after if after[name] != self.files.get(name))
            self.files = after
        return text

    async def step(self, agent: str, action: str) -> Observation:
        """End the work of the role `agent` and list the files there are and those it lacks."""
        lacking = [name for name in REQUIRED.get(agent, ()) if name not in self.files]
        self.missing[agent] = lacking
        note = f"\nMissing: {', '.join(lacking)}" if lacking else ""
        return Observation(self._listing() + note, done=not lacking)

    async def truth_text(self) -> str:
        """Return the submission's present value under the task's metric, for a coach.

        Neither the held-out rows nor a path: "metric: rmse (lower is better)", the values of the
        submission, of the best constant and of a perfect answer, and further measures.
        """
        metric = self.grading.metric
        better = "higher" if metric_named(metric).higher else "lower"
        further: dict[str, float] = {}
        try:
            raw, further = await self._measure()
            worth = f"{raw:g}"
        except Invalid as invalid:
            worth = f"no score ({invalid.kind}: {invalid})"
        return (
            f"metric: {metric} ({better} is better)\n{SUBMISSION}: {worth}\n"
            f"baseline: {self.baseline:g}\nbest: {self.best:g}"
            + "".join(f"\n{name}: {value:.4g}" for name, value in further.items() if name != metric)
        )

    async def _measure(self) -> tuple[float, dict[str, float]]:
        """Return the submission's score, and measures beside its metric. Raises Invalid.

        In a thread: a table may have 64 MB, and other episodes go on meanwhile.
        """

        def measure() -> tuple[float, dict[str, float]]:
            predictions = align(self.files.get(SUBMISSION), self.truth, self.grading)
            raw = score_predictions(predictions, self.truth, self.grading)
            return raw, further_measures(predictions, self.truth, self.grading)

        return await asyncio.to_thread(measure)

    def _listing(self) -> str:
        return f"Files: {', '.join(sorted(self.files))}"

    async def score(self, episode: Episode) -> dict[str, float]:
        """Return the normalised score, at most 1; the raw one and what is above 1 are metrics.

        Counts `completed`, or why the submission has no score, and each role's missing files.
        """
        for role, lacking in self.missing.items():
            if lacking:
                episode.count(f"missing_{role}")
        try:
            raw, further = await self._measure()
        except Invalid as invalid:
            episode.count(f"submission_{invalid.kind}")
            return {"team": 0.0}
        episode.count("completed")
        score = normalise(raw, baseline=self.baseline, best=self.best)
        if math.isfinite(raw):
            episode.metrics["raw_score"] = raw
        episode.metrics["normalised_score"] = score
        for name, value in further.items():
            episode.metrics[f"submission/{name}"] = value
        return {"team": min(1.0, score)}


def stale(before: Mapping[str, bytes], after: Mapping[str, bytes], *, failed: bool) -> bool:
    """Return whether a call left the older submission as it was, and failed or changed another
    file.
    """
    if SUBMISSION not in before or before[SUBMISSION] != after.get(SUBMISSION):
        return False
    names = {*before, *after}
    return failed or any(before.get(name) != after.get(name) for name in names)
