"""Poses programming problems, and scores programs by hidden tests."""

from __future__ import annotations

import ast
import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rolecall.core.async_types import Work
from rolecall.core.interfaces.demonstrator import Line, Scene
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.tags import find_program, find_tag, visible
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import GENERATED, gather, generates, list_sources
from rolecall.environments.code.demonstrations import demonstrate
from rolecall.environments.code.generated import GeneratedCode, Kind
from rolecall.environments.code.hidden_tests import MOST_PAIRS, Pair, mismatches, read_pair
from rolecall.environments.code.rows import code_tasks, read_pairs
from rolecall.runtime.call_tree import outside
from rolecall.sandbox.base import Limits, SandboxError, try_out
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.verdict import Examination, examine, stdin_tests

Result = TypeVar("Result")
MOST = 4_096  # results kept; the oldest goes first


class Remembered:
    """Attempts of a group often write the same program: it is run against the same tests once.

    Work that raises is not remembered. A caller that is cancelled does not cancel it for others.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[Result]]) -> Result:
        if key not in self._known:
            while len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            # The episode that asks first may end before the others that wait for it.
            self._known[key] = outside(self._do(key, work))
        result: Result = await asyncio.shield(self._known[key])
        return result

    async def _do(self, key: Hashable, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await work()
        except BaseException:
            self._known.pop(key, None)
            raise


notices = logging.getLogger("rolecall.notices")

Passes = Callable[[Task], Awaitable[list[bool]]]  # each test of a task, for its reference
AT_ONCE = 16  # references between two looks at the clock


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of running reference solutions."""

    num_run: int
    failed: list[str]  # ids of tasks


def report_references(check: Callable[[], Work[Outcome]], path: Path) -> None:
    """Run the check, and report in one line how many references fail."""
    with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
        try:
            outcome = thread.submit(lambda: asyncio.run(check())).result()
        except SandboxError:  # programs cannot be run here
            return
    if outcome.failed:
        notices.warning(
            "%s: %d of the %d reference solutions that were run fail their own tests, so no "
            "program may pass these here; the first is %s",
            path,
            len(outcome.failed),
            outcome.num_run,
            outcome.failed[0],
        )


async def run_references(tasks: Sequence[Task], passes: Passes, *, limit_s: float) -> Outcome:
    """Run the references in their order until the time is over."""

    async def solves(task: Task) -> bool:
        try:
            return all(await passes(task))
        except ValueError:  # a test that no program can pass or fail
            return False

    until, failed, num_run = time.monotonic() + limit_s, [], 0
    while num_run < len(tasks) and time.monotonic() < until:
        chosen = tasks[num_run : num_run + AT_ONCE]
        solved = await asyncio.gather(*map(solves, chosen))
        failed += [task.id for task, is_solved in zip(chosen, solved, strict=True) if not is_solved]
        num_run += len(chosen)
    return Outcome(num_run, failed)


KINDS: tuple[Kind, ...] = ("function", "stdin")
NO_CODE = "There is no fenced python block."
CHECKING_S = 10.0  # most time for the reference solutions of a file
Score = Literal["pass", "share"]


class CodeEnvironment:
    """Programming problems that are `generated`, or HumanEval, MBPP and stdin rows of files."""

    def __init__(
        self,
        train: str | list[str] = GENERATED,
        test: str | list[str] = GENERATED,
        score: Score = "pass",
        level: int | None = None,
        kinds: list[Kind] | None = None,
        test_size: int | None = None,
        wall_s: float = 3.0,
        memory_mb: int = 1024,
        packages: bool = True,
        unenforced: list[str] | None = None,
    ) -> None:
        """train, test: `generated`, local files or hub data sets; one, or a list of several.
        score: `pass` is 1 where all hidden tests pass, `share` is the share that does; HumanEval's
            tasks have one test.
        level: steps of a generated problem; by default 2.
        kinds: kinds of generated problems; by default both.
        test_size: generated test problems; by default 200.
        wall_s: most seconds of a program.
        memory_mb: most memory of a program.
        packages: whether programs can import the packages that are installed here.
        unenforced: limits that this machine need not hold: memory, syscalls.

        Options of generated problems are errors where nothing is generated.
        """
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        generates(self.sources, level=level, kinds=kinds, test_size=test_size)
        if level is not None and not 1 <= level <= 4:
            raise ValueError(f"level must be 1 to 4 steps (it is {level})")
        self.level, self.kinds = level or 2, tuple(kinds or KINDS)
        self.test_size = test_size or 200
        self.score = score
        self.limits = Limits(wall_s=wall_s, memory_mb=memory_mb)
        self._packages, self._unenforced = packages, tuple(unenforced or ())
        self._sandbox: Bubblewrap | None = None
        self._ran = Remembered()

    @property
    def sandbox(self) -> Bubblewrap:
        """Raises SandboxError where this machine can have none."""
        if self._sandbox is None:
            self._sandbox = self._new_sandbox()
        return self._sandbox

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a malformed row.
        """

        def read(source: str) -> Sequence[Task]:
            if source == GENERATED:
                generated = GeneratedCode(split, level=self.level, kinds=self.kinds)
                return generated[: self.test_size] if split == "test" else generated
            path = locate(source, split=split)
            tasks = code_tasks(path, source=Path(source).stem)
            self._check_references(tasks, path)
            return tasks

        return gather(self.sources[split], read=read)

    def _check_references(self, tasks: Sequence[Task], path: Path) -> None:
        """Report references that fail, if programs can be run here; `check` says if they cannot."""
        with_reference = [task for task in tasks if task.info.get("reference")]
        if not with_reference:
            return
        try:
            sandbox = self._new_sandbox()
        except SandboxError:
            return

        async def passes(task: Task) -> list[bool]:
            world = CodeWorld(task, sandbox, ran=Remembered(), limits=self.limits, measure="pass")
            return await world.run_tests(task.info["reference"])

        async def check() -> Outcome:
            try:
                return await run_references(with_reference, passes, limit_s=CHECKING_S)
            finally:
                await sandbox.close()

        report_references(check, path)

    def _new_sandbox(self) -> Bubblewrap:
        """Make a sandbox; raises SandboxError if this machine can have none."""
        return Bubblewrap(packages=self._packages, unenforced=self._unenforced)

    def demonstrate(self, scene: Scene) -> Line:
        """Return what a good agent says; see `environments.code.demonstrations`."""
        return demonstrate(scene)

    def open(self, task: Task, *, seed: int) -> World:
        return CodeWorld(task, self.sandbox, ran=self._ran, limits=self.limits, measure=self.score)

    async def check(self) -> None:
        """Check that a program can be run; raises SandboxError otherwise."""
        await try_out(self._new_sandbox(), self.limits)

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None


class CodeWorld(World):
    """Scores the program in the workflow's answer by the task's hidden tests.

    The program is the last fenced python block, or a bare block if it is the only one.

    A program that was run against the same tests before, by whomever, is not run again.
    """

    def __init__(
        self,
        task: Task,
        sandbox: Bubblewrap,
        *,
        ran: Remembered,
        limits: Limits,
        measure: Score,
    ) -> None:
        self.task, self.sandbox, self.ran = task, sandbox, ran
        self.limits, self.measure = limits, measure
        self.entry_point: str = task.info["entry_point"]
        self.program: str | None = None  # the newest that was proposed

    async def fork(self) -> CodeWorld:
        fork = CodeWorld(
            self.task, self.sandbox, ran=self.ran, limits=self.limits, measure=self.measure
        )
        fork.program = self.program
        return fork

    async def step(self, agent: str, action: str) -> Observation:
        """Code is run against the examples that the prompt shows, and no other tests.

        `<tests>` with a pair on each line are run against the newest code, and earn their agent
        what `_worth` says; `done` says that the code passes all.
        """
        written = find_tag(action, "tests")
        if written is not None:
            return await self._tested(written)
        program = self.program = self._program(action)
        if program is None:
            return Observation(NO_CODE)
        examples = read_pairs(self.task)
        if not examples:
            return Observation("The task has no examples to run.")
        wrong = await self._mismatches(program, examples)
        share = 1 - len(wrong) / len(examples)
        return Observation(_told(wrong, examples), team=share, done=not wrong)

    async def _tested(self, written: str) -> Observation:
        pairs = _read(written, self.entry_point)
        if not pairs:
            form = f"{self.entry_point}(...) == value" if self.entry_point else "'in' == 'out'"
            return Observation(f"No test has the form {form}.")
        reward = await self._worth(pairs)
        if self.program is None:
            return Observation("There is no code to test.", reward=reward)
        wrong = await self._mismatches(self.program, pairs)
        return Observation(_told(wrong, pairs), reward=reward, done=not wrong)

    async def _worth(self, pairs: list[Pair]) -> float:
        """Return the share of tests that the reference passes; 0 without a reference.

        If the task has wrong programs, the share is multiplied by the share of those that such
        tests expose.
        """
        reference = self.task.info.get("reference")
        if reference is None:
            return 0.0
        refuted = await self._mismatches(reference, pairs)
        right = [pair for number, pair in enumerate(pairs) if number not in refuted]
        worth = len(right) / len(pairs)
        others = self.task.info.get("wrong", [])
        if not others:
            return worth
        exposed = [bool(await self._mismatches(program, right)) for program in others]
        return worth * sum(exposed) / len(exposed)

    async def score(self, episode: Episode) -> dict[str, float]:
        """Return 1 or 0, or the share of tests that pass.

        Raises SandboxError if that is unknown.
        """
        program = self._program(episode.answer)
        if program is None:
            episode.count("no_code")
        if program is None or episode.is_truncated:
            return {"team": 0.0}
        prelude = self.task.info.get("prelude", "")
        tests = (repr(self.task.answer), self.entry_point, prelude)  # ids repeat between splits
        passed = await self.ran.get((*tests, program), lambda: self.run_tests(program))
        share = sum(passed) / len(passed)
        return {"team": share if self.measure == "share" else float(share == 1.0)}

    async def run_tests(self, program: str) -> list[bool]:
        """Return whether each hidden test passes; one verdict for all where only that counts."""
        hidden = self.task.answer
        if "inputs" in hidden:
            return await stdin_tests(
                self.sandbox,
                program,
                inputs=hidden["inputs"],
                outputs=hidden["outputs"],
                limits=self.limits,
            )
        if "pairs" in hidden:
            pairs = [Pair(*pair) for pair in hidden["pairs"]]
            wrong = await self._mismatches(program, pairs)
            return [number not in wrong for number in range(len(pairs))]
        tests = hidden["tests"] if self.measure == "share" else ["\n".join(hidden["tests"])]
        prelude = self.task.info.get("prelude", "")
        verdicts = [
            await examine(
                self.sandbox,
                Examination(program, self.entry_point, test, prelude),
                limits=self.limits,
            )
            for test in tests
        ]
        return [verdict.passed for verdict in verdicts]

    async def _mismatches(self, program: str, pairs: Sequence[Pair]) -> dict[int, str]:
        def run() -> Work[dict[int, str]]:
            return mismatches(
                self.sandbox, program, pairs=pairs, entry_point=self.entry_point, limits=self.limits
            )

        return await self.ran.get((self.entry_point, program, tuple(pairs)), run)

    def _program(self, text: str) -> str | None:
        """Return the program: a completion without the function goes on where the prompt ends."""
        code = find_program(visible(text))
        if code is None or not self.entry_point:
            return code
        names = _defined(code)
        if self.task.info.get("completes") and self.entry_point not in names:
            return self.task.prompt + code
        if self.entry_point not in names and "Solution" in names:
            return f"{code}\n{self.entry_point} = Solution().{self.entry_point}\n"
        return code


def _defined(code: str) -> set[str]:
    """Return the names that a program's own statements define; none if it cannot be parsed
    alone."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in body if isinstance(node, kinds)}
    assigned = [node.targets for node in body if isinstance(node, ast.Assign)]
    return names | {to.id for targets in assigned for to in targets if isinstance(to, ast.Name)}


def _read(written: str, entry_point: str) -> list[Pair]:
    """Return the different pairs, in their order; lines of another form are no tests."""
    pairs = [read_pair(line, entry_point=entry_point) for line in written.splitlines()]
    return list(dict.fromkeys(pair for pair in pairs if pair is not None))[:MOST_PAIRS]


def _told(wrong: dict[int, str], pairs: Sequence[Pair]) -> str:
    if not wrong:
        return f"All {len(pairs)} tests pass."
    lines = [f"{pairs[number]}, but it {message}" for number, message in sorted(wrong.items())]
    return "\n".join([f"{len(wrong)} of {len(pairs)} tests fail:", *lines])
