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

from pydantic import BaseModel, Field, ValidationError

from rolecall.core.async_types import Work
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs, optional
from rolecall.sandbox.base import Limits, Ran, Run, SandboxError
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.bubblewrap_command import WORK
from rolecall.sandbox.cells import run_cells
from rolecall.serve.binding import answer_at, check_address
from rolecall.serve.guard import Guard, Rules, is_local, while_connected

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse

IGNORED = "IGNORE_THIS_FILE"  # a client's mark in the name of a file that is not to be written
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


AnyJob = TypeVar("AnyJob", bound=Job)
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


def app(
    sandbox: Bubblewrap,
    *,
    limits: Limits | None = None,  # of each run; a request may set time, and memory below this
    token: str = "",  # asked for as a bearer token; "": anybody may run programs
    queue: int = 256,  # requests that may wait
    body_mb: int = 128,  # of one request
    most_wall_s: float = 300.0,  # of a run, whatever a request asks for
    local: bool = True,  # it listens on loopback
) -> FastAPI:
    held = limits or Limits()
    places = Queue(places=sandbox.concurrency, most=queue)

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[None]:
        yield
        await sandbox.close()

    application = FastAPI(title="rolecall sandbox", lifespan=lifespan)
    rules = Rules(
        token=token,
        local=local,
        body_bytes=body_mb << 20,
        requests=sandbox.concurrency + queue,
        open_paths=("/v1/ping",),
        busy=504,
    )
    application.add_middleware(Guard, rules)

    @application.get("/v1/ping")
    async def ping() -> JSONResponse:
        return JSONResponse("pong")

    @application.get("/v1/capabilities")
    async def capabilities() -> JsonObject:
        return {
            "globs": True,
            "max_output_bytes": held.output_bytes,
            "max_file_bytes": held.file_mb << 20,
            "max_run_timeout": most_wall_s,
            "isolation": sandbox.plan.isolation,
            "languages": sandbox.languages,
        }

    def describe_limits(job: Code | Notebook) -> str:
        """Return a note on the limits that are not those that were asked for."""
        asked_s = job.run_timeout if isinstance(job, Code) else job.total_timeout
        words = [f"a run may take {most_wall_s:g} s here"] if asked_s > most_wall_s else []
        if job.memory_limit_MB > held.memory_mb:
            words.append(f"memory is limited to {held.memory_mb} MB here")
        elif job.memory_limit_MB > 0 and sandbox.plan.groups is None:
            words.append(sandbox.plan.isolation)
        return "; ".join(words)

    @application.post("/run_code")
    async def run_code(request: Request) -> JSONResponse:
        job = await _read(request, Code)
        run = await _checked(
            sandbox,
            job,
            held,
            wall_s=min(job.run_timeout, most_wall_s),
            code=job.code,
            language=job.language,
        )
        run = dataclasses.replace(run, stdin=job.stdin)
        try:
            ran = await while_connected(request.receive, places.hold(sandbox.run(run)))
        except ValueError as error:  # files that cannot lie beside one another
            raise HTTPException(422, str(error)) from error
        except SandboxError as error:
            return JSONResponse({"compile_result": None, "run_result": FAILED} | _failed(error))
        answer = {"compile_result": None, "run_result": _result(ran)}
        return await asyncio.to_thread(_answer, answer, ran, job, told=describe_limits(job))

    @application.post("/run_jupyter")
    async def run_jupyter(request: Request) -> JSONResponse:
        job = await _read(request, Notebook)
        run = await _checked(sandbox, job, held, wall_s=min(job.total_timeout, most_wall_s))
        try:
            playing = run_cells(sandbox, job.cells, run=run, cell_s=job.cell_timeout)
            cells, ran = await while_connected(request.receive, places.hold(playing))
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        except SandboxError as error:
            return JSONResponse({"driver": FAILED, "cells": []} | _failed(error))
        answer = {"driver": _result(ran), "cells": [dataclasses.asdict(cell) for cell in cells]}
        return await asyncio.to_thread(_answer, answer, ran, job, told=describe_limits(job))

    return application


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
    application = app(
        sandbox, limits=held, token=token, most_wall_s=most_wall_s, local=is_local(host)
    )
    answer_at(host, port, application, token=token, log_level="warning")


async def _read(request: Request, kind: type[AnyJob]) -> AnyJob:
    body = await request.body()
    try:
        return await asyncio.to_thread(kind.model_validate_json, body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        raise HTTPException(422, errors) from error


async def _checked(
    sandbox: Bubblewrap,
    job: Job,
    limits: Limits,
    *,
    wall_s: float,
    code: str = "",
    language: str = "python",
) -> Run:
    """Return the run that a request asks for; 422 if it asks for what cannot be."""
    try:
        wanted_mb = job.memory_limit_MB if job.memory_limit_MB > 0 else limits.memory_mb
        memory_mb = min(wanted_mb, limits.memory_mb)
        run = Run(
            code,
            language=language,
            files=await asyncio.to_thread(_decoded, job.files),
            fetch=tuple(map(_inside, job.fetch_files)),
            limits=dataclasses.replace(limits, wall_s=wall_s, memory_mb=memory_mb),
        )
        sandbox.command(run)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    return run


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


def _answer(part: JsonObject, ran: Ran, job: Job, *, told: str) -> JSONResponse:
    names = {str(PurePosixPath(_inside(name))): name for name in job.fetch_files}
    files = {
        names.get(path, path): base64.b64encode(content).decode()
        for path, content in ran.files.items()
    }
    answer = {
        "status": "Success" if ran.status == "finished" else "Failed",
        "message": told,
        "executor_pod_name": None,
        "files": files,
        "left_out": ran.left_out,  # ours: matched, but too many or too large
    }
    return JSONResponse(answer | part)
