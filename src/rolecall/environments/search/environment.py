"""Poses questions, and answers the searches of agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rolecall.core.interfaces.demonstrator import Line, Scene
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.interfaces.tool import Tool
from rolecall.core.tags import find_tag
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import GENERATED, Columns, check_columns, gather, generates, list_sources
from rolecall.environments.search.demonstrations import demonstrate
from rolecall.environments.search.generated import HopWorld
from rolecall.environments.search.rows import search_tasks
from rolecall.grading.qa import exact_match, f1, targets
from rolecall.retrieval.client import SearchClient
from rolecall.retrieval.dialects import Dialect
from rolecall.retrieval.opening import open_client
from rolecall.retrieval.rendering import render
from rolecall.tools.search import search_tool

NOTICE = "Nothing was searched: there were no words between search tags."
Metric = Literal["em", "f1"]


class SearchEnvironment:
    """Questions that are `generated`, of local files or of hub data sets, and a corpus to search.

    It searches the servers at `url`, else the index in the folder `index`, which is built from the
    file `corpus` if need be, else the generated corpus.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self,
        train: str | list[str] = GENERATED,
        test: str | list[str] = GENERATED,
        url: str | list[str] | None = None,
        dialect: Dialect | None = None,
        corpus: str | None = None,
        index: str | None = None,
        model: str | None = None,
        topk: int = 3,
        deadline_s: float = 30.0,
        metric: Metric = "em",
        hops: list[int] | None = None,
        corpus_size: int | None = None,
        test_size: int | None = None,
        columns: Columns | None = None,
    ) -> None:
        """train, test: `generated`, local files or hub data sets; one, or a list of several.
        url: server to search, or several that are asked in turn.
        dialect: protocol of the servers; by default batch.
        corpus: file of passages from which the index is built if it is not there.
        index: folder of an index, or a file that faiss made of the lines of `corpus`.
        model: sentence-transformers model, for an index of vectors instead of BM25.
        topk: documents of a search.
        deadline_s: most seconds of a search.
        metric: `em` is 1 for an exact match, `f1` is the overlap of words.
        hops: facts that generated questions take; by default 1, 2 and 3.
        corpus_size: generated passages; by default 300.
        test_size: generated test questions; by default 200.
        columns: names of the columns of files that hold question and answer, where they are other
            than usual: {question: query, answer: gold}.

        Options of generated questions are errors where nothing is generated.
        """
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        is_generated = generates(
            self.sources, hops=hops, corpus_size=corpus_size, test_size=test_size
        )
        if hops and not {*hops} <= {1, 2, 3}:
            raise ValueError(f"hops must be of 1, 2 and 3 (it is {hops})")
        if topk < 1:
            raise ValueError(f"topk must be at least 1 (it is {topk})")
        self.hops, self.test_size = hops or [1, 2, 3], test_size or 200
        self.topk, self.metric = topk, metric
        self.columns = check_columns(columns, self.sources)
        self.generated = HopWorld(num_passages=corpus_size or 300) if is_generated else None
        self.client = open_client(
            url=url,
            dialect=dialect,
            corpus=corpus,
            index=index,
            model=model,
            passages=self.generated.passages if self.generated else None,
            deadline_s=deadline_s,
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a malformed row.
        """

        def read(source: str) -> Sequence[Task]:
            if source != GENERATED:
                path = locate(source, split=split)
                return search_tasks(path, source=Path(source).stem, columns=self.columns)
            assert self.generated is not None
            tasks = self.generated.tasks(split, hops=self.hops)
            return tasks[: self.test_size] if split == "test" else tasks

        return gather(self.sources[split], read=read)

    def demonstrate(self, scene: Scene) -> Line:
        """Return what a good agent says; see `environments.search.demonstrations`."""
        return demonstrate(scene)

    def open(self, task: Task, *, seed: int) -> World:
        return SearchWorld(task, self.client, topk=self.topk, metric=self.metric)

    async def check(self) -> None:
        """Check the search service; raises SearchDownError if nobody answers."""
        await self.client.check()

    async def close(self) -> None:
        await self.client.close()


class SearchWorld(World):
    """Answers `<search>` with documents and scores the last `<answer>` of the workflow's answer.

    It counts `search_queries`, and as `search_refused` actions without a query or an answer.
    """

    def __init__(self, task: Task, client: SearchClient, *, topk: int, metric: Metric) -> None:
        self.task, self.client, self.topk, self.metric = task, client, topk, metric
        self.accepted = targets(task.answer)
        self.num_queries = 0
        self.num_refused = 0

    async def fork(self) -> SearchWorld:
        fork = SearchWorld(self.task, self.client, topk=self.topk, metric=self.metric)
        fork.num_queries, fork.num_refused = self.num_queries, self.num_refused
        return fork

    def tools(self) -> list[Tool]:
        return [search_tool(self.client, topk=self.topk)]

    async def step(self, agent: str, action: str) -> Observation:
        """Answer a `<search>` with documents, or end the episode at an `<answer>`.

        Without words to search for the observation is a notice, and the turn is spent. Raises
        SearchError if the search itself fails.
        """
        answer = find_tag(action, "answer")
        if answer is not None:
            return Observation(answer, team=self._right(answer), done=True)
        query = find_tag(action, "search")
        if not query:
            self.num_refused += 1
            return Observation(NOTICE)
        self.num_queries += 1
        hits = await self.client.query(query, topk=self.topk)
        passages = [hit.id for hit in hits]
        return Observation(render(hits), info={"query": query, "passages": passages})

    def find_answer(self, text: str) -> str | None:
        """Return the content of the last `<answer>`."""
        return find_tag(text, "answer")

    async def score(self, episode: Episode) -> dict[str, float]:
        episode.metrics["count/search_queries"] = float(self.num_queries)
        episode.metrics["count/search_refused"] = float(self.num_refused)
        answer = self.find_answer(episode.answer)
        if answer is None or episode.is_truncated:
            return {"team": 0.0}
        return {"team": self._right(answer)}

    def _right(self, answer: str) -> float:
        if self.metric == "f1":
            return f1(answer, self.accepted)
        return float(exact_match(answer, self.accepted))
