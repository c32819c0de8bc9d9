"""Poses maths problems, and compares boxed answers with the truth."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rolecall.core.interfaces.demonstrator import Line, Scene
from rolecall.core.interfaces.environment import Observation, Suggestions, World
from rolecall.core.json_types import JsonObject
from rolecall.core.tags import find_tag
from rolecall.core.types import Episode, Task, Turn
from rolecall.data.data_locations import locate
from rolecall.data.sources import GENERATED, Columns, check_columns, gather, generates, list_sources
from rolecall.environments.math.demonstrations import demonstrate
from rolecall.environments.math.generated import Generated, Kind, Level
from rolecall.environments.math.rows import math_tasks
from rolecall.grading.math.answers import AnswerForm, extract
from rolecall.grading.math.equivalence import MathJudge

notices = logging.getLogger("rolecall.notices")
LOOKING_S = 60.0  # for references that no parser reads; a few thousand need a second or two
KINDS: tuple[Kind, ...] = ("expression", "equation", "word")
Feedback = Literal["none", "verdict"]
WRITE: dict[AnswerForm, str] = {  # what to write, where nothing was read
    "boxed": "put it in \\boxed{}",
    "marked": 'end with "Answer:" and the answer',
    "last": "end with a number",
    "any": "put it in \\boxed{}",
}
FORMS_REPORTED: dict[str, AnswerForm] = {"strict": "boxed", "lenient": "any"}


class MathEnvironment:
    """Maths problems from `generated`, local files, or hub data sets such as gsm8k."""

    def __init__(
        self,
        train: str | list[str] = GENERATED,
        test: str | list[str] = GENERATED,
        level: Level | None = None,
        kinds: list[Kind] | None = None,
        test_size: int | None = None,
        where: JsonObject | None = None,
        answer: AnswerForm = "boxed",
        feedback: Feedback = "none",
        columns: Columns | None = None,
    ) -> None:
        """train, test: `generated`, local files or hub data sets; one, or a list of several.
        level: operations in a generated problem, or the fewest and the most of them: [1, 4]; by
            default 2.
        kinds: kinds of generated problems; by default expression, equation and word. There are
            division, whose divisions leave no remainder, and inequality, too.
        test_size: generated test problems; by default 600.
        where: columns with the value, or the list of values, of the rows to be taken:
            {year: [2023, 2024]}; a source of which no row has the column is taken as it is.
        answer: what counts as the answer: the last \\boxed{} (`boxed`); a box, or what stands after
            `####` or "Answer:" (`marked`); the last number (`last`); or the first of these that a
            text has (`any`). Evaluations report `boxed` and `any` beside each other.
        feedback: what an agent that acts sees of its answer, in workflows such as multi_turn: its
            own words (`none`), or whether the answer is right, wrong or could not be read
            (`verdict`). A right one ends the attempt then. The truth is never shown.
        columns: names of the columns of files that hold question and answer, where they are other
            than usual: {question: puzzle, answer: result}.

        Options of generated problems are errors where nothing is generated.
        """
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        generates(self.sources, level=level, kinds=kinds, test_size=test_size)
        chosen: Level = 2 if level is None else level
        fewest, most = chosen if isinstance(chosen, tuple) else (chosen, chosen)
        if not 1 <= fewest <= most <= 6:
            raise ValueError(
                "level must be 1 to 6 operations, or the fewest and the most of them "
                f"(it is {list(chosen) if isinstance(chosen, tuple) else chosen})"
            )
        self.level = chosen
        self.kinds = tuple(kinds or KINDS)
        self.test_size = test_size or 600
        self.where = {
            column: {str(one) for one in (value if isinstance(value, list) else [value])}
            for column, value in (where or {}).items()
        }
        named = self.sources["train"] + self.sources["test"]
        if self.where and {*named} == {GENERATED}:
            raise ValueError("where has no effect, because all problems are generated; remove it")
        self.answer, self.feedback = answer, feedback
        self.columns = check_columns(columns, self.sources)
        self.judge = MathJudge()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a malformed row.
        """

        def read(source: str) -> Sequence[Task]:
            if source != GENERATED:
                path = locate(source, split=split)
                rows = math_tasks(path, source=Path(source).stem, columns=self.columns)
                return self._taken(rows, source)
            tasks = Generated(split, level=self.level, kinds=self.kinds, seed=0)
            return tasks[: self.test_size] if split == "test" else tasks

        tasks = gather(self.sources[split], read=read)
        if set(self.sources[split]) != {GENERATED}:
            self._tell_unreadable(split, [task.answer for task in tasks])
        return tasks

    def _taken(self, rows: list[Task], source: str) -> list[Task]:
        """Return the rows that `where` selects. Raises ValueError where it leaves none."""
        selected = rows
        for column, values in self.where.items():
            if any(column in task.info for task in rows):
                selected = [task for task in selected if str(task.info.get(column)) in values]
        if not selected:
            filters = ", ".join(f"{name}={'|'.join(sorted(of))}" for name, of in self.where.items())
            raise ValueError(f"where: no row of {source} has {filters}; write other values")
        return selected

    def _tell_unreadable(self, split: str, answers: list[object]) -> None:
        """Warn of references that no parser reads, before a run meets them."""
        unreadable = self.judge.unreadable(answers, limit_s=LOOKING_S)
        if unreadable:
            notices.warning(
                "%d references of the %s split are compared as text, because no parser reads "
                "them; the first: %s",
                len(unreadable),
                split,
                unreadable[0],
            )

    @property
    def suggestions(self) -> Suggestions:
        """Return what to change where a run has no signal."""
        is_generated = self.sources["train"] == [GENERATED]
        fewest, most = self.level if isinstance(self.level, tuple) else (self.level, self.level)
        return Suggestions(
            easier=f"environment.level={fewest - 1}" if is_generated and fewest > 1 else "",
            harder=f"environment.level={most + 1}" if is_generated and most < 6 else "",
            lenient="" if self.answer == "any" else "environment.answer=any",
        )

    def demonstrate(self, scene: Scene) -> Line:
        """Return what a good agent says; see `environments.math.demonstrations`."""
        return demonstrate(scene, self.answer)

    def open(self, task: Task, *, seed: int) -> World:
        return MathWorld(task, self.judge, self.answer, self.feedback)

    def parse_answer(self, turn: Turn) -> str | None:
        """Return the answer of a turn in the form that counts; agents that box are read by it."""
        return extract(turn.text, form=self.answer)

    async def close(self) -> None:
        await self.judge.close()


class MathWorld(World):
    """Scores the workflow's answer: 1 if it equals the truth, else 0."""

    def __init__(
        self,
        task: Task,
        judge: MathJudge,
        form: AnswerForm = "boxed",
        feedback: Feedback = "none",
    ) -> None:
        self.task, self.judge, self.form, self.feedback = task, judge, form, feedback
        self.solved = False  # whether the newest proposed answer is right

    async def fork(self) -> MathWorld:
        fork = MathWorld(self.task, self.judge, self.form, self.feedback)
        fork.solved = self.solved
        return fork

    async def step(self, agent: str, action: str) -> Observation:
        """Judge a `<verify>` tag as a verdict on the newest answer, and anything else as an answer.

        A right verdict earns its agent 1; a right answer earns the team 1.
        """
        verdict = find_tag(action, "verify")
        if verdict is not None:
            right = (verdict.strip().lower() == "approve") == self.solved
            return self._seen(action, reward=float(right))
        value = self.find_answer(action)
        self.solved = value is not None and (await self.judge.equal(value, self.task.answer)).equal
        if self.feedback == "verdict":
            if value is None:
                return self._seen(f"No answer could be read: {WRITE[self.form]} and try again.")
            if not self.solved:
                return self._seen("Your answer is wrong. Find the mistake and try again.")
            return replace(self._seen("Your answer is right."), done=True)
        return self._seen(action)

    def find_answer(self, text: str) -> str | None:
        """Return the answer in the form that counts."""
        return extract(text, form=self.form)

    async def equal(self, one: str, other: str) -> bool:
        """Return whether two boxed values are equal."""
        return (await self.judge.equal(one, other)).equal

    def _seen(self, action: str, reward: float = 0.0) -> Observation:
        solved = float(self.solved)
        return Observation(action, key=str(solved), reward=reward, team=solved)

    async def score(self, episode: Episode) -> dict[str, float]:
        """Return the team's score; note on the episode whether a box, and any form, is right."""
        graded: dict[str | None, float] = {None: 0.0}  # by the value

        async def grade(form: AnswerForm) -> float:
            value = None if episode.is_truncated else extract(episode.answer, form=form)
            if value is not None and value not in graded:
                verdict = await self.judge.equal(value, self.task.answer)
                if form == self.form and verdict.reason in ("text", "timeout", "memory", "crash"):
                    episode.count(f"judge_{verdict.reason}")
                graded[value] = float(verdict.equal)
            return graded[value]

        score = await grade(self.form)
        for name, form in FORMS_REPORTED.items():
            episode.metrics[f"answer/{name}"] = await grade(form)
        return {"team": score}
