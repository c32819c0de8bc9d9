"""HTTP requests come in, programs run, results go out: the SandboxFusion protocol and a bit more.

Consumes requests, produces one run each; a request waits for one of the sandbox's places and is
answered with 504 when too many wait or one waits too long, which clients take for "try again".
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hmac
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from rolecall.sandbox.base import Limits, Ran, Run, SandboxError
from rolecall.sandbox.blueprint import WORK
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.cells import run_cells
from rolecall.serve.binding import answer_at

try:
    from fastapi import Depends, FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse
except ImportError as error:
    raise ImportError('the sandbox server needs: pip install "rolecall[serve]"') from error

IGNORED = "IGNORE_THIS_FILE"  # a client's mark in the name of a file that is not to be written
WAIT_S = 8.0  # for a place: clients give up 10 s after the timeouts they ask for
# What a client finds in place of a result when the sandbox failed.
FAILED = {"status": "Error", "execution_time": 0.0, "return_code": None, "stdout": "", "stderr": ""}
Seconds = Annotated[float, Field(gt=0, le=3600)]


class Job(BaseModel):
    """What both kinds of requests have; fields that are not known are ignored."""

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


class Queue:
    """As many runs at once as there are places, as many requests waiting as are allowed."""

    def __init__(self, *, places: int, most: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._most = most
        self._waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
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
            yield
        finally:
            self._places.release()


def app(
    sandbox: Bubblewrap,
    *,
    limits: Limits | None = None,  # of each run; a request may set time, and memory below this
    token: str = "",  # asked for as a bearer token; "": anybody may run programs
    queue: int = 256,  # requests that may wait
    body_mb: int = 128,  # of one request
) -> FastAPI:
    held = limits or Limits()
    places = Queue(places=sandbox.concurrency, most=queue)

    def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, "this server asks for a bearer token")

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[None]:
        yield
        await sandbox.close()

    application = FastAPI(title="rolecall sandbox", lifespan=lifespan)
    guarded = [Depends(authorised)]

    @application.get("/v1/ping")
    async def ping() -> JSONResponse:
        return JSONResponse("pong")

    @application.get("/v1/capabilities", dependencies=guarded)
    async def capabilities() -> dict[str, Any]:
        return {
            "globs": True,
            "max_output_bytes": held.output_bytes,
            "max_file_bytes": held.file_mb << 20,
            "isolation": sandbox.blueprint.isolation,
            "languages": sandbox.languages,
        }

    @application.post("/run_code", dependencies=guarded)
    async def run_code(request: Request) -> JSONResponse:
        job = await _read(request, Code, most=body_mb << 20)
        run = await _checked(
            sandbox, job, held, wall_s=job.run_timeout, code=job.code, language=job.language
        )
        run = dataclasses.replace(run, stdin=job.stdin)
        try:
            async with places.place():
                ran = await sandbox.run(run)
        except SandboxError as error:
            return JSONResponse({"compile_result": None, "run_result": FAILED} | _failed(error))
        answer = {"compile_result": None, "run_result": _result(ran)}
        return await asyncio.to_thread(_answer, answer, ran, job, sandbox, held.memory_mb)

    @application.post("/run_jupyter", dependencies=guarded)
    async def run_jupyter(request: Request) -> JSONResponse:
        job = await _read(request, Notebook, most=body_mb << 20)
        run = await _checked(sandbox, job, held, wall_s=job.total_timeout)
        try:
            async with places.place():
                cells, ran = await run_cells(sandbox, job.cells, run=run, cell_s=job.cell_timeout)
        except SandboxError as error:
            return JSONResponse({"driver": FAILED, "cells": []} | _failed(error))
        answer = {"driver": _result(ran), "cells": [dataclasses.asdict(cell) for cell in cells]}
        return await asyncio.to_thread(_answer, answer, ran, job, sandbox, held.memory_mb)

    return application


def serve(
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    token: str = "",
    concurrency: int = 0,  # runs at once; 0: one for each processor
    memory_mb: int = 4096,  # most of a run
    unenforced: Collection[str] = (),  # limits this machine may do without
) -> None:
    """Run programs for whoever asks, until interrupted. Raises SandboxError if it cannot."""
    # Clients expect all of what is printed.
    held = Limits(memory_mb=memory_mb, output_bytes=1 << 20)
    sandbox = Bubblewrap(concurrency=concurrency, disk_mb=held.disk_mb, unenforced=unenforced)
    answer_at(host, port, app(sandbox, limits=held, token=token), log_level="warning")


async def _read(request: Request, kind: type[AnyJob], *, most: int) -> AnyJob:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"a request may have {most} bytes")
    try:
        return await asyncio.to_thread(kind.model_validate_json, bytes(body))
    except ValidationError as error:
        told = error.errors(include_url=False, include_input=False, include_context=False)
        raise HTTPException(422, told) from error


async def _checked(
    sandbox: Bubblewrap,
    job: Job,
    limits: Limits,
    *,
    wall_s: float,
    code: str = "",
    language: str = "python",
) -> Run:
    """The run that a request asks for; 422 if it asks for what cannot be."""
    try:
        asked = job.memory_limit_MB if job.memory_limit_MB > 0 else limits.memory_mb
        memory_mb = min(asked, limits.memory_mb)
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
    """An absolute path in the working directory is as good as a relative one."""
    return path.removeprefix(f"{WORK}/")


def _failed(error: SandboxError) -> dict[str, Any]:
    return {
        "status": "SandboxError",
        "message": str(error),
        "executor_pod_name": None,
        "files": {},
    }


def _result(ran: Ran) -> dict[str, Any]:
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


def _answer(
    part: dict[str, Any], ran: Ran, job: Job, sandbox: Bubblewrap, most_mb: int
) -> JSONResponse:
    told = ""
    if job.memory_limit_MB > most_mb:
        told = f"memory is limited to {most_mb} MB here"
    elif job.memory_limit_MB > 0 and sandbox.blueprint.groups is None:
        told = sandbox.blueprint.isolation
    asked = {str(PurePosixPath(_inside(name))): name for name in job.fetch_files}
    files = {
        asked.get(path, path): base64.b64encode(content).decode()
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
