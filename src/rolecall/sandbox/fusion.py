"""Runs programs on a SandboxFusion server, ours or another."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from rolecall.core.json_types import JsonObject
from rolecall.runtime.http import Http
from rolecall.runtime.retrying import GaveUpError, RefusedError, Retrying, RetryLimits
from rolecall.runtime.secret_texts import excerpt, remember_secrets_of_url, scrub
from rolecall.sandbox.base import Ran, Run, SandboxError, SandboxRefusedError
from rolecall.sandbox.drain import Drain, gap
from rolecall.sandbox.inside import bundle, init

COMPILE_S = 10.0  # the protocol's default
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 4.0  # between requests for one run
ATTEMPTS = 4  # requests that reach nobody before a server counts as away
BUSY = (504,)  # it is asked again; a server that failed otherwise may have run the program
REFUSED = (401, 403, 404, 405)  # whatever is asked
SLACK = 1 << 20  # bytes of a response beside its streams and files
SCRIPTS = {"python": "__program__.py", "bash": "__program__.sh"}


class Fusion:
    """Limits other than wall time and memory are the server's own.

    Raises ValueError for a run that the server refuses, SandboxRefusedError if it would refuse any,
    SandboxError if it fails.
    """

    def __init__(
        self,
        url: str,  # of the server, or the full one of its /run_code
        *,
        token: str = "",
        concurrency: int = 32,  # requests at once
        patience_s: float = 60.0,  # for queues and repeats, beside a run's own time
    ) -> None:
        remember_secrets_of_url(url)
        self._url = url.rstrip("/").removesuffix("/run_code")
        limits = RetryLimits(
            deadline_s=COMPILE_S + patience_s,  # and the run's own time
            pause_s=FIRST_PAUSE_S,
            longest_pause_s=LONGEST_PAUSE_S,
            attempts=ATTEMPTS,
            concurrency=concurrency,
        )
        self._retrying = Retrying(limits)
        self._capabilities: JsonObject | None = None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = Http(extra="serve", headers=headers, trust_env=False, passing=BUSY)

    async def run(self, run: Run) -> Ran:
        allowed_s = run.limits.wall_s + self._retrying.limits.deadline_s
        try:
            return await self._retrying.call(lambda: self._run(run), deadline_s=allowed_s)
        except GaveUpError as error:
            raise SandboxError(
                f"{scrub(self._url)} gave no result in {error.limit}: {error.last}"
            ) from error

    async def close(self) -> None:
        await self._http.close()

    async def _run(self, run: Run) -> Ran:
        """Run once. Raises RetryableError, or what `run` raises."""
        bundles = any(set(name) & set("*?[") for name in run.fetch) and not await self._globs()
        body = _bundling(run) if bundles else _body(run, run.code, run.files, run.fetch)
        most = SLACK + 2 * (run.limits.file_mb << 20) + 12 * run.limits.output_bytes
        return _ran(await self._ask("POST", "/run_code", body=body, most=most), run, bundles)

    async def _globs(self) -> bool:
        """Return whether the server expands patterns; the public one does not know the question."""
        if self._capabilities is None:
            capabilities = await self._ask("GET", "/v1/capabilities", most=SLACK, optional=True)
            self._capabilities = capabilities or {}
        return bool(self._capabilities.get("globs"))

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        most: int,
        body: JsonObject | None = None,
        optional: bool = False,
    ) -> JsonObject:
        """Return the server's answer; {} where something optional is missing."""
        url, address = f"{self._url}{path}", scrub(f"{self._url}{path}")
        try:
            content = await self._http.ask(method, url, body=body, most_bytes=most)
        except RefusedError as error:
            if optional and error.status == 404:
                return {}
            if error.status in REFUSED:
                raise SandboxRefusedError(f"{address} refuses any request, {error}") from error
            if 400 <= error.status < 500:
                raise ValueError(f"{address} refuses the request, {error}") from error
            raise SandboxError(f"{address} fails, {error}") from error
        return _parsed(address, content)


def _parsed(url: str, content: bytes) -> JsonObject:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise SandboxError(f"{url} is no sandbox server: it says {excerpt(content, 100)!r}")
    return answer


def _body(run: Run, code: str, files: Mapping[str, bytes], fetch: tuple[str, ...]) -> JsonObject:
    return {
        "code": code,
        "language": run.language,
        "compile_timeout": COMPILE_S,
        "run_timeout": run.limits.wall_s,
        "memory_limit_MB": run.limits.memory_mb,
        "stdin": run.stdin,
        "files": {path: base64.b64encode(content).decode() for path, content in files.items()},
        "fetch_files": list(fetch),
    }


def _bundling(run: Run) -> JsonObject:
    """Return a job in which Python runs the program and bundles its files within one request."""
    if run.language not in SCRIPTS:
        raise ValueError(f"this server takes no patterns to fetch, and {run.language} no other way")
    script = SCRIPTS[run.language]
    job: JsonObject = {"language": run.language, "program": script, "fetch": run.fetch}
    job |= {"num_files": run.limits.num_files, "num_bytes": run.limits.file_mb << 20}
    files = {
        **run.files,
        script: run.code.encode(errors="surrogatepass"),
        bundle.JOB: json.dumps(job).encode(),
        bundle.WALK: Path(init.__file__).read_bytes(),
    }
    body = _body(run, Path(bundle.__file__).read_text(), files, (bundle.BUNDLE,))
    return body | {"language": "python"}


def _ran(answer: JsonObject, run: Run, bundles: bool) -> Ran:
    try:
        if answer["status"] == "SandboxError":
            raise SandboxError(f"the sandbox server failed: {scrub(str(answer.get('message')))}")
        # What does not compile has no run.
        result = answer["run_result"] or answer["compile_result"]
        late = result["status"] == "TimeLimitExceeded"
        out, out_lost = _stream(result, "stdout", run.limits.output_bytes)
        err, err_lost = _stream(result, "stderr", run.limits.output_bytes)
        files = answer.get("files") or {}
        if bundles:
            files = json.loads(base64.b64decode(files.get(bundle.BUNDLE, "e30=")))
        code = None if late else int(result["return_code"])
        return Ran(
            status="timeout" if late else "error" if code else "finished",
            return_code=code,
            stdout=out,
            stderr=err,
            wall_s=float(result["execution_time"] or 0.0),
            limit="wall" if late else result.get("limit", ""),
            stdout_omitted=out_lost,
            stderr_omitted=err_lost,
            left_out=tuple(map(str, answer.get("left_out") or ())),
            files={path: base64.b64decode(content) for path, content in files.items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SandboxError(f"the sandbox server's answer has another form: {error!r}") from error


def _stream(result: JsonObject, name: str, most: int) -> tuple[str, int]:
    """Cut a stream to `most` bytes; returns the text and how many bytes are missing.

    The text says what was cut.
    """
    text, lost = str(result[name] or ""), int(result.get(f"{name}_omitted") or 0)
    kept = (text.replace(gap(lost), "", 1) if lost else text).encode(errors="replace")
    if len(kept) <= most:
        return text, lost
    drain = Drain(most, lost=lost)
    drain.add(kept)
    return drain.text(), drain.omitted_bytes
