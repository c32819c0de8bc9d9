"""Serves environments with their workflows to agents that are elsewhere."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rolecall.config.load import find
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Engine
from rolecall.core.optional import optional
from rolecall.environment_server.hosted import HostedEnvironment
from rolecall.environment_server.session import ActionEngine
from rolecall.rollout.episodes import PlaySettings
from rolecall.runtime.call_tree import IdleBarrier, task_factory
from rolecall.serve.binding import check_address, check_port, settings
from rolecall.serve.guard import Rules, is_local
from rolecall.setup.context import make_context
from rolecall.setup.open_environment import check_environment, open_surroundings
from rolecall.setup.plan import load_plan

Protocol = Literal["grpc", "openenv"]
END_S = 3.0  # that steps under way have when the server ends


def open_environment(source: str) -> HostedEnvironment:
    """Return the environment and the workflow of a recipe or a YAML file.

    Raises ConfigError for what cannot be played from elsewhere.
    """
    path = find(source)
    plan = load_plan(path)
    if plan.workflow.is_external:
        raise ConfigError(
            f"{source}: workflow {plan.workflow.name!r} is a program, which asks agents by itself; "
            "serve another workflow"
        )
    surroundings = open_surroundings(plan)
    if surroundings.chat_models:
        names = ", ".join(surroundings.chat_models)
        raise ConfigError(
            f"{source}: the environment or a reward asks the policy {names}, and no model is "
            "loaded here; serve it without that"
        )
    engine: Engine = ActionEngine()
    engines = dict.fromkeys(plan.config.policies, engine)
    context = make_context(plan, surroundings, {}, engines, IdleBarrier())
    context.manner = PlaySettings(tries_out=False)  # one answer to each call
    return HostedEnvironment(path.stem, context, kind=plan.config.environment.name)


@dataclass(frozen=True, slots=True)
class Binding:
    """Says where a server listens, and who may ask it.

    `certificate`: files of the private key and the certificate chain, for TLS.
    """

    host: str
    port: int
    token: str
    certificate: tuple[Path, Path] | None = None


def serve(sources: list[str], protocol: Protocol, binding: Binding) -> None:
    """Serve environments until interrupted.

    Raises ConfigError for what cannot be served, and for an address that others can reach without
    a token.
    """
    check_address(binding.host, token=binding.token)
    check_port(binding.host, binding.port)
    for path in binding.certificate or ():
        read_pem(path)
    run = _serve_grpc if protocol == "grpc" else _serve_openenv
    environments = [open_environment(source) for source in sources]
    asyncio.run(_serve(environments, partial(run, environments, binding)))


async def _serve(environments: list[HostedEnvironment], run: Callable[[], Awaitable[None]]) -> None:
    asyncio.get_running_loop().set_task_factory(task_factory)
    try:
        for environment in environments:
            await check_environment(environment.context.environment)
        await run()
    finally:
        for environment in environments:
            await environment.context.close()


async def _serve_grpc(environments: list[HostedEnvironment], binding: Binding) -> None:
    grpc_service = load_server("grpc_service")
    service = grpc_service.EnvironmentService(environments)
    pair = None if binding.certificate is None else tuple(map(read_pem, binding.certificate))
    address = f"{binding.host}:{binding.port}"
    server, _ = grpc_service.make_server(service, address, token=binding.token, certificate=pair)
    await server.start()
    print(f"listening on {address} (gRPC)", flush=True)
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(END_S)
        await service.close()


async def _serve_openenv(environments: list[HostedEnvironment], binding: Binding) -> None:
    uvicorn = optional("uvicorn", extra="serve")
    rules = Rules(token=binding.token, local=is_local(binding.host))
    app = load_server("openenv_app").make_app(environments, rules)
    key, chain = binding.certificate or (None, None)
    config = settings(
        app, host=binding.host, port=binding.port, access_log=False,
        ssl_keyfile=key, ssl_certfile=chain,
    )  # fmt: skip
    await uvicorn.Server(config).serve()


def load_server(name: str) -> Any:
    """Import a module of `environment_server` that needs the packages of an extra."""
    return importlib.import_module(f"rolecall.environment_server.{name}")


def read_pem(path: Path) -> bytes:
    """Return the content of a file; raises ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
