"""Routes the questions of the page to the files that answer them."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from rolecall.core.optional import needs
from rolecall.watch.coach import answer_coach
from rolecall.watch.compare import answer_compare
from rolecall.watch.find import find_turns
from rolecall.watch.group import answer_group
from rolecall.watch.index import TurnIndex
from rolecall.watch.index_cache import choose_file
from rolecall.watch.jobs import Jobs, Order
from rolecall.watch.matrix import answer_matrix
from rolecall.watch.models import FindLine, Model, Session
from rolecall.watch.one_run import JournalCounter, answer_changes, answer_run
from rolecall.watch.prompts import answer_prompts
from rolecall.watch.refusals import ForbiddenError, Unanswerable
from rolecall.watch.roles import answer_roles
from rolecall.watch.run_list import Rows, answer_runs
from rolecall.watch.runs import Runs, WatchedRun
from rolecall.watch.spikes import answer_spikes
from rolecall.watch.step import answer_step
from rolecall.watch.talk import answer_talk
from rolecall.watch.task import answer_task
from rolecall.watch.tokens import answer_tokens
from rolecall.watch.tools import answer_tools

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response, StreamingResponse

STATIC = Path(__file__).with_name("static")
KINDS = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
    ".woff2": "font/woff2", ".map": "application/json",
}  # fmt: skip
NO_PAGE = b"The page is not built: its files belong into src/rolecall/watch/static.\n"
MOST_INDEXES = 8  # of runs, which are kept in memory
MOST_HITS = 1000
TOGETHER_S = 0.03  # lines of a search within this time are sent together
FRESH = {"cache-control": "no-store"}
Name = Annotated[str, Query(max_length=1000)]
Optional = Annotated[str | None, Query(max_length=1000)]
StepNumber = Annotated[int | None, Query(ge=0, le=10**9)]


@dataclass(slots=True)
class Watch:
    """Holds what the server knows: runs, their indexes, and what it has read of them."""

    runs: Runs
    jobs: Jobs | None = None  # None: the server starts none
    rows: Rows = field(default_factory=Rows)
    journal: JournalCounter = field(default_factory=JournalCounter)
    indexes: OrderedDict[Path, TurnIndex] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def index(self, run: WatchedRun) -> TurnIndex:
        """Return the index of a run, of which the newest few are kept."""
        with self.lock:
            if run.path not in self.indexes:
                episodes = run.path / "episodes"
                self.indexes[run.path] = TurnIndex(episodes, cache=choose_file(episodes))
            index = self.indexes[run.path]
            self.indexes.move_to_end(run.path)
            while len(self.indexes) > MOST_INDEXES:
                self.indexes.popitem(last=False)
        return index


def make_app(watch: Watch) -> FastAPI:
    """Return the application with all routes, without the guard around it."""

    @asynccontextmanager
    async def end_jobs(app: FastAPI) -> AsyncIterator[None]:
        yield  # a signal that ends the server ends its process before anything behind `run()`
        if watch.jobs is not None:
            watch.jobs.close()

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=end_jobs)
    add_pages(app)
    add_runs(app, watch)
    add_steps(app, watch)
    add_run_pages(app, watch)
    add_jobs(app, watch)

    @app.exception_handler(Unanswerable)
    def refuse(request: Request, error: Unanswerable) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=error.status)

    @app.exception_handler(RequestValidationError)
    def refuse_invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [f"{one['loc'][-1]}: {one['msg']}" for one in error.errors()]
        return JSONResponse({"detail": "; ".join(problems)}, status_code=400)

    return app


def answer(model: Model) -> Response:
    """Return a model as JSON; numbers that are not finite become null."""
    return Response(model.model_dump_json(), media_type="application/json", headers=FRESH)


def add_runs(app: FastAPI, watch: Watch) -> None:
    """Add the routes about runs as a whole."""
    runs = watch.runs

    @app.get("/api/session")
    def session() -> Response:
        folders = [os.fsencode(path).decode(errors="replace") for path in runs.folders]
        return answer(
            Session(
                version=version("rolecall"), allows_jobs=watch.jobs is not None, folders=folders
            )
        )

    @app.get("/api/runs")
    def list_runs() -> Response:
        return answer(answer_runs(runs, watch.rows))

    @app.get("/api/run")
    def one_run(run: Name) -> Response:
        watched = runs.find(run)
        watch.index(watched).read_in_background()
        return answer(answer_run(watched, watch.rows))

    @app.get("/api/changes")
    def changes(run: Name, after: Name = "") -> Response:
        return answer(answer_changes(runs.find(run), after, watch.journal))


def add_steps(app: FastAPI, watch: Watch) -> None:
    """Add the routes about steps, conversations and turns."""
    runs = watch.runs

    @app.get("/api/step")
    def one_step(run: Name, step: StepNumber = None) -> Response:
        return answer(answer_step(runs.find(run), step))

    @app.get("/api/group")
    def group(run: Name, task: Name, step: StepNumber = None, source: Optional = None) -> Response:
        return answer(answer_group(runs.find(run), step, task, source))

    @app.get("/api/talk")
    def talk(run: Name, episode: Name, step: StepNumber = None, split: Optional = None) -> Response:
        return answer(answer_talk(runs.find(run), step, episode, split))

    @app.get("/api/tokens")
    def tokens(run: Name, turn: Name, step: StepNumber = None, split: Optional = None) -> Response:
        return answer(answer_tokens(runs.find(run), step, turn, split))

    @app.get("/api/find")
    def find(
        run: Name, q: Name = "", limit: Annotated[int, Query(ge=0, le=MOST_HITS)] = 200
    ) -> Response:
        watched = runs.find(run)
        index = watch.index(watched)

        lines = find_turns(watched, index, q, limit=limit)
        return StreamingResponse(
            join_lines(lines), media_type="application/x-ndjson", headers=FRESH
        )


def join_lines(lines: Iterator[FindLine]) -> Iterator[str]:
    """Yield lines of JSON: the first turn at once, then all of a moment together.

    Each text takes a switch of threads, which is most of the time of a short search.
    """
    texts: list[str] = []
    sent = 0.0
    for line in lines:
        texts.append(line.model_dump_json() + "\n")
        if time.monotonic() - sent > TOGETHER_S or line.is_end:
            yield "".join(texts)
            texts = []
            sent = time.monotonic() if line.hit else 0.0


def add_run_pages(app: FastAPI, watch: Watch) -> None:
    """Add the routes about what a run has of its own: spikes, tasks, prompts, tools, coaches."""
    runs = watch.runs

    @app.get("/api/spikes")
    def spikes(run: Name, step: StepNumber = None) -> Response:
        watched = runs.find(run)
        number = watched.choose_step(step)
        job, measured = "", dict[tuple[str, int], float]()
        if watch.jobs is not None:
            job, measured = watch.jobs.find_measured(watched, number)
        return answer(answer_spikes(watched, number, job=job, measured=measured))

    @app.get("/api/task")
    def task(run: Name, task: Name, source: Optional = None, steps: Optional = None) -> Response:
        watched = runs.find(run)
        return answer(answer_task(watched, watch.index(watched), task, source, steps))

    @app.get("/api/compare")
    def compare(first: Name, second: Name) -> Response:
        return answer(answer_compare(runs.find(first), runs.find(second)))

    @app.get("/api/prompts")
    def prompts(run: Name) -> Response:
        return answer(answer_prompts(runs.find(run)))

    @app.get("/api/coach")
    def coach(run: Name, step: StepNumber = None) -> Response:
        return answer(answer_coach(runs.find(run), step))

    @app.get("/api/tools")
    def tools(run: Name, step: StepNumber = None) -> Response:
        return answer(answer_tools(runs.find(run), step))

    @app.get("/api/roles")
    def roles(run: Name, step: StepNumber = None) -> Response:
        return answer(answer_roles(runs.find(run), step))

    @app.get("/api/matrix")
    def matrix(run: Name, name: Optional = None) -> Response:
        return answer(answer_matrix(runs.find(run), name))


def add_jobs(app: FastAPI, watch: Watch) -> None:
    """Add the routes that start and follow processes which compute with a run's weights."""

    def jobs() -> Jobs:
        if watch.jobs is None:
            raise ForbiddenError("this server starts no replays; start it with --what-if")
        return watch.jobs

    @app.post("/api/jobs")
    def start(order: Order) -> Response:
        return answer(jobs().start(order, watch.runs.find(order.run)))

    @app.get("/api/jobs")
    def look(job: Name) -> Response:
        return answer(jobs().look(job))

    @app.post("/api/cancel")
    def cancel(job: Name) -> Response:
        return answer(jobs().cancel(job))


def add_pages(app: FastAPI) -> None:
    """Add the files of the page; any other path that is no question is the page itself."""

    @app.exception_handler(404)
    def page(request: Request, error: Exception) -> Response:
        if request.url.path.startswith("/api") or request.method not in ("GET", "HEAD"):
            detail = "there is nothing at this address"
            return JSONResponse({"detail": detail}, status_code=404)
        return read_static(request.url.path.removeprefix("/"))


def read_static(name: str) -> Response:
    """Return a file of the page; the page for a name that is none of its files."""
    files = {path.name: path for path in STATIC.glob("*") if path.suffix in KINDS}
    path = files.get(name) or files.get("index.html")
    if path is None:
        return Response(NO_PAGE, status_code=404, media_type="text/plain")
    headers = {"cache-control": "no-cache"}
    return Response(path.read_bytes(), media_type=KINDS[path.suffix], headers=headers)
