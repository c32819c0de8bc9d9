"""Serves a sandbox over HTTP: the SandboxFusion protocol and a bit more.

Consumes requests, produces one run each; a request waits for one of the sandbox's places and is
answered with 504 when too many wait or one waits too long, which clients take for "try again".
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field

from rolecall.core.async_types import Work
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs, optional
from rolecall.sandbox.base import Limits, Ran, Run, SandboxError
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.bubblewrap_command import WORK
from rolecall.sandbox.cells import run_cells
from rolecall.serve.binding import answer_at, check_address
from rolecall.serve.guard import Guard, Rules, is_local, while_connected
from rolecall.serve.request_body import read_body

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse

IGNORED = "IGNORE_THIS_FILE"  # a client's mark in the name of a file that is not to be written
RULES = Rules(body_bytes=128 << 20, open_paths=("/v1/ping",), busy=504)
WAIT_S = 8.0  # for a place: clients give up 10 s after the timeouts they ask for
# What a client finds in place of a result when the sandbox failed.
FAILED = {"status": "Error", "execution_time": 0.0, "return_code": None, "stdout": "", "stderr": ""}
Seconds = Annotated[float, Field(gt=0, le=3600)]


class Job(BaseModel):
    """The fields of both kinds of requests; fields that are not known are ignored."""

    memory_limit_MB: int = -1  # only above 0
    files: dict[str, str | None] = {}  # path -> base64
    fetch_files: list[str] = []


class Code(Job):
    code: str
    language: str = "python"
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    stdin: str | None = None


class Notebook(Job):
    cells: list[str]
    cell_timeout: float = Field(0.0, ge=0, le=3600)  # of each; 0: no own one
    total_timeout: Seconds = 45.0
    kernel: Literal["python3"] = "python3"


Result = TypeVar("Result")


class Queue:
    """Runs as many at once as there are places, and lets as many requests wait as are allowed."""

    def __init__(self, *, places: int, most: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._most = most
        self._waiting = 0

    async def hold(self, work: Work[Result]) -> Result:
        """Return the result of `work`, which begins when a place is free."""
        try:
            if self._waiting >= self._most:
                raise HTTPException(504, "too many requests wait; try again")
            self._waiting += 1
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._places.acquire()
            except TimeoutError as error:
                raise HTTPException(504, "no place became free; try again") from error
            finally:
                self._waiting -= 1
            try:
                return await work
            finally:
                self._places.release()
        finally:
            work.close()  # of what never began


class SandboxServer:
    """Runs programs and notebooks in one sandbox.

    `limits`: of each run; a request may set its time, and memory below this; `queue`: requests that
    may wait for a place; `most_wall_s`: most seconds of a run, whatever a request asks for.
    """

    def __init__(
        self,
        sandbox: Bubblewrap,
        *,
        limits: Limits | None = None,
        queue: int = 256,
        most_wall_s: float = 300.0,
    ) -> None:
        self.sandbox, self.limits = sandbox, limits or Limits()
        self.queue, self.most_wall_s = queue, most_wall_s
        self._places = Queue(places=sandbox.concurrency, most=queue)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        yield
        await self.sandbox.close()

    async def ping(self, request: Request) -> JSONResponse:
        return JSONResponse("pong")

    async def capabilities(self, request: Request) -> JSONResponse:
        return JSONResponse(
            {
                "globs": True,
                "max_output_bytes": self.limits.output_bytes,
                "max_file_bytes": self.limits.file_mb << 20,
                "max_run_timeout": self.most_wall_s,
                "isolation": self.sandbox.plan.isolation,
                "languages": self.sandbox.languages,
            }
        )

    async def run_code(self, request: Request) -> JSONResponse:
        job = await read_body(request, Code)
        run = await self._make_run(job, job.run_timeout, code=job.code, language=job.language)
        run = dataclasses.replace(run, stdin=job.stdin)
        try:
            work = self._places.hold(self.sandbox.run(run))
            ran = await while_connected(request.receive, work)
        except ValueError as error:  # files that cannot lie beside one another
            raise HTTPException(422, str(error)) from error
        except SandboxError as error:
            return JSONResponse({"compile_result": None, "run_result": FAILED} | _failed(error))
        answer = {"compile_result": None, "run_result": _result(ran)}
        note = self._describe_limits(job, job.run_timeout)
        return await asyncio.to_thread(_answer, answer, ran, job, note=note)

    async def run_jupyter(self, request: Request) -> JSONResponse:
        job = await read_body(request, Notebook)
        run = await self._make_run(job, job.total_timeout)
        try:
            playing = run_cells(self.sandbox, job.cells, run=run, cell_s=job.cell_timeout)
            cells, ran = await while_connected(request.receive, self._places.hold(playing))
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        except SandboxError as error:
            return JSONResponse({"driver": FAILED, "cells": []} | _failed(error))
        answer = {"driver": _result(ran), "cells": [dataclasses.asdict(cell) for cell in cells]}
        note = self._describe_limits(job, job.total_timeout)
        return await asyncio.to_thread(_answer, answer, ran, job, note=note)

    async def _make_run(
        self, job: Job, wall_s: float, *, code: str = "", language: str = "python"
    ) -> Run:
        """Return the run that a request asks for; 422 if it asks for what cannot be."""
        most_mb = self.limits.memory_mb
        memory_mb = min(job.memory_limit_MB, most_mb) if job.memory_limit_MB > 0 else most_mb
        wall_s = min(wall_s, self.most_wall_s)
        try:
            run = Run(
                code,
                language=language,
                files=await asyncio.to_thread(_decoded, job.files),
                fetch=tuple(map(_inside, job.fetch_files)),
                limits=dataclasses.replace(self.limits, wall_s=wall_s, memory_mb=memory_mb),
            )
            self.sandbox.command(run)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        return run

    def _describe_limits(self, job: Job, asked_s: float) -> str:
        """Return a note on the limits that are not those that were asked for."""
        notes = []
        if asked_s > self.most_wall_s:
            notes.append(f"a run may take {self.most_wall_s:g} s here")
        if job.memory_limit_MB > self.limits.memory_mb:
            notes.append(f"memory is limited to {self.limits.memory_mb} MB here")
        elif job.memory_limit_MB > 0 and self.sandbox.plan.groups is None:
            notes.append(self.sandbox.plan.isolation)
        return "; ".join(notes)


def make_app(server: SandboxServer, *, rules: Rules = RULES) -> FastAPI:
    """Return the application of a server."""
    app = FastAPI(title="rolecall sandbox", lifespan=server.lifespan)
    requests = server.sandbox.concurrency + server.queue
    app.add_middleware(Guard, dataclasses.replace(rules, requests=requests))
    app.add_route("/v1/ping", server.ping)
    app.add_route("/v1/capabilities", server.capabilities)
    app.add_route("/run_code", server.run_code, methods=["POST"])
    app.add_route("/run_jupyter", server.run_jupyter, methods=["POST"])
    return app


def serve(
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    token: str = "",
    concurrency: int = 0,  # runs at once; 0: one for each processor
    memory_mb: int = 4096,  # most of a run
    most_wall_s: float = 300.0,  # of a run
    unenforced: Collection[str] = (),  # limits this machine may do without
) -> None:
    """Run programs for whoever asks, until interrupted. Raises SandboxError if it cannot, and
    ConfigError for a missing package or an address that others can reach without a token.
    """
    optional("uvicorn", extra="serve")  # before a sandbox is tried out
    check_address(host, token=token)
    # Clients expect all of what is printed.
    held = Limits(memory_mb=memory_mb, output_bytes=1 << 20)
    sandbox = Bubblewrap(concurrency=concurrency, disk_mb=held.disk_mb, unenforced=unenforced)
    server = SandboxServer(sandbox, limits=held, most_wall_s=most_wall_s)
    rules = dataclasses.replace(RULES, token=token, local=is_local(host))
    app = make_app(server, rules=rules)
    answer_at(host, port, app, token=token, log_level="warning")


def _decoded(files: dict[str, str | None]) -> dict[str, bytes]:
    return {
        _inside(path): base64.b64decode(content, validate=True)
        for path, content in files.items()
        if content is not None and IGNORED not in path
    }


def _inside(path: str) -> str:
    """Return a path relative to the working directory if it is absolute and inside."""
    return path.removeprefix(f"{WORK}/")


def _failed(error: SandboxError) -> JsonObject:
    return {
        "status": "SandboxError",
        "message": str(error),
        "executor_pod_name": None,
        "files": {},
    }


def _result(ran: Ran) -> JsonObject:
    return {
        "status": "TimeLimitExceeded" if ran.status == "timeout" else "Finished",
        "execution_time": ran.wall_s,
        "return_code": ran.return_code,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        # Ours: what ended it, and how much of the middle of a stream is not there.
        "limit": ran.limit,
        "stdout_omitted": ran.stdout_omitted,
        "stderr_omitted": ran.stderr_omitted,
    }


def _answer(part: JsonObject, ran: Ran, job: Job, *, note: str) -> JSONResponse:
    names = {str(PurePosixPath(_inside(name))): name for name in job.fetch_files}
    files = {
        names.get(path, path): base64.b64encode(content).decode()
        for path, content in ran.files.items()
    }
    answer = {
        "status": "Success" if ran.status == "finished" else "Failed",
        "message": note,
        "executor_pod_name": None,
        "files": files,
        "left_out": ran.left_out,  # ours: matched, but too many or too large
    }
    return JSONResponse(answer | part)
