"""Adds A2A to an application: the card of the agent, and JSON-RPC at one address."""

from __future__ import annotations

from importlib.metadata import version

from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.gateway.agent2agent.executor import CheckedMessages, TeamExecutor
from rolecall.gateway.agent2agent.tasks import NewestTasks
from rolecall.gateway.routes import Answerer, describe_refusal
from rolecall.serve.guard import Refused

with needs("a2a", extra="a2a"):
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.request_handlers.response_helpers import agent_card_to_dict
    from a2a.server.routes import create_jsonrpc_routes
    from a2a.types import (
        AgentCapabilities,
        AgentCard,
        AgentInterface,
        AgentSkill,
        HTTPAuthSecurityScheme,
        SecurityRequirement,
        SecurityScheme,
        StringList,
    )
    from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH as CARD

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response

ADDRESS = "/a2a"
VERSIONS = ("1.0", "0.3")  # of the protocol, which the SDK answers at the same address
TEXT = ["text/plain"]
REFUSED = -32000  # JSON-RPC: an error of the server that no protocol defines
TOKEN = "token"


def add_agent2agent(app: FastAPI, answerer: Answerer, *, has_token: bool) -> None:
    """Let an application answer as an agent; its card names the address that was asked."""
    [name] = answerer.names
    tasks = NewestTasks()
    handler = DefaultRequestHandler(
        TeamExecutor(answerer, tasks),
        tasks,
        make_card(name, ADDRESS, has_token=has_token),
        request_context_builder=CheckedMessages(),
    )
    app.routes.extend(create_jsonrpc_routes(handler, ADDRESS, enable_v0_3_compat=True))

    async def send_card(request: Request) -> Response:
        url = str(request.base_url).rstrip("/") + ADDRESS
        return JSONResponse(agent_card_to_dict(make_card(name, url, has_token=has_token)))

    app.add_route(CARD, send_card)


def make_card(name: str, url: str, *, has_token: bool) -> AgentCard:
    """Return what clients read of an agent before they ask it."""
    skill = AgentSkill(
        id="answer",
        name="Answer",
        description="Agents work on a question together and answer it.",
        tags=["question answering"],
    )
    bearer = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
    schemes = {TOKEN: bearer} if has_token else {}
    return AgentCard(
        name=name,
        description="A team of agents that was trained with rolecall.",
        version=version("rolecall"),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=number)
            for number in VERSIONS
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=TEXT,
        default_output_modes=TEXT,
        skills=[skill],
        security_schemes=schemes,
        security_requirements=[SecurityRequirement(schemes={one: StringList()}) for one in schemes],
    )


def describe_refusal_anywhere(refused: Refused, path: str) -> JsonObject:
    """Return the body of what the guard refuses, at the address of this protocol or another."""
    if path != ADDRESS:
        return describe_refusal(refused, path)
    error = {"code": REFUSED, "message": refused.told}
    return {"jsonrpc": "2.0", "id": None, "error": error}
