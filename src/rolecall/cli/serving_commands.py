"""Declares the servers: serve environments, serve sandbox, serve search and serve team."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.arguments import Run
from rolecall.core.errors import ConfigError
from rolecall.runtime.interrupts import ends_at_once
from rolecall.runtime.secret_texts import read_token

TokenEnv = Annotated[
    str | None,
    typer.Option(
        help="Environment variable with a token that clients must send; needed off loopback."
    ),
]
Host = Annotated[str, typer.Option(help="Address; the default is this machine alone.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port.")]


class Protocol(StrEnum):
    """The protocols of `serve environments`."""

    grpc = "grpc"
    openenv = "openenv"


def serve_environments(
    names: Annotated[
        str, typer.Argument(metavar="NAME[,NAME]", help="Recipes or YAML files, with commas.")
    ],
    protocol: Annotated[
        Protocol, typer.Option(help="grpc: that of MRLM. openenv: that of OpenEnv.")
    ] = Protocol.grpc,
    host: Host = "127.0.0.1",
    port: Port = 50051,
    token_env: TokenEnv = None,
    tls_key: Annotated[Path | None, typer.Option(help="File of a private key, for TLS.")] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="File of the certificate chain, for TLS.")
    ] = None,
) -> None:
    """Let agents that are elsewhere play the teams of configs, whose rewards they get."""
    with ends_at_once():
        from rolecall.runs.serve_environments import Binding, serve

    pair = None
    if tls_key is not None and tls_certificate is not None:
        pair = (tls_key, tls_certificate)
    elif tls_key is not None or tls_certificate is not None:
        raise ConfigError("--tls-key and --tls-certificate belong together; name both or none")
    sources = [name.strip() for name in names.split(",") if name.strip()]
    serve(sources, protocol.value, Binding(host, port, token_in(token_env), pair))


def serve_sandbox(
    host: Host = "127.0.0.1",
    port: Port = 8080,
    token_env: TokenEnv = None,
    concurrency: Annotated[int, typer.Option(min=0, help="Runs at once; 0: one a core.")] = 0,
    memory_mb: Annotated[int, typer.Option(min=16, help="Most memory of a run.")] = 4096,
    wall_s: Annotated[
        float, typer.Option(min=1, help="Most seconds of a run, whatever a request asks for.")
    ] = 300.0,
    unenforced: Annotated[
        list[str] | None,
        typer.Option(help="A limit it need not hold: memory, syscalls."),
    ] = None,
) -> None:
    """Run code for SandboxFusion's clients (POST /run_code, /run_jupyter), in bubblewrap."""
    with ends_at_once():
        from rolecall.serve.sandbox import serve

    try:
        serve(
            host,
            port,
            token=token_in(token_env),
            concurrency=concurrency,
            memory_mb=memory_mb,
            most_wall_s=wall_s,
            unenforced=tuple(unenforced or ()),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def serve_search(
    index: Annotated[
        Path | None,
        typer.Option(help="Folder of the index, made if it is not there; or a file of faiss."),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="JSON Lines: id and contents.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Of sentence-transformers: index vectors instead of BM25.")
    ] = None,
    reranker: Annotated[
        str | None, typer.Option(help="A cross-encoder of sentence-transformers to order by.")
    ] = None,
    topk: Annotated[int, typer.Option(min=1, help="Documents where a request names none.")] = 3,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token_env: TokenEnv = None,
) -> None:
    """Answer Search-R1's requests (POST /retrieve), with a passage index of your own."""
    with ends_at_once():
        from rolecall.serve.search import serve

    try:
        serve(
            index=index,
            corpus=corpus,
            model=model,
            reranker=reranker,
            host=host,
            port=port,
            topk=topk,
            token=token_in(token_env),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def serve_team(
    run: Run,
    checkpoint: Annotated[str, typer.Option(help="latest, best or step-N.")] = "latest",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token_env: TokenEnv = None,
) -> None:
    """Answer with a trained team, for clients of OpenAI, Anthropic and Google, and of A2A."""
    with ends_at_once():
        from rolecall.runs.serve_team import serve

    serve(run, checkpoint_name=checkpoint, host=host, port=port, token=token_in(token_env))


def token_in(variable: str | None) -> str:
    """Return the token in an environment variable; raises ConfigError if a named one is not set."""
    try:
        return read_token(variable, key="--token-env")
    except ValueError as error:
        raise ConfigError(str(error)) from error
