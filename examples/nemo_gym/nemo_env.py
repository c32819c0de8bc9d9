"""Plays episodes of an environment of NeMo-Gym: its agent, its resources server and its rubric.

In this folder: ../../build/nemo_gym/bin/python nemo_env.py
writes tasks, and then: rolecall train solver.yaml
"""

import asyncio
import itertools
import json
import os
import random
import socket
from pathlib import Path

import uvicorn
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import (
    GlobalAIOHTTPAsyncClientConfig,
    ServerClient,
    SimpleServer,
    get_response_json,
    raise_for_status,
    set_global_aiohttp_client,
)
from omegaconf import OmegaConf
from resources_servers.reasoning_gym.app import ReasoningGymResourcesServer
from responses_api_agents.simple_agent.app import SimpleAgent
from responses_api_models.openai_model.app import SimpleModelServer

FOLDER = Path(__file__).resolve().parent
HOST = "127.0.0.1"
TEST_TASKS = 200
SERVERS = {
    "agent": SimpleAgent,
    "model": SimpleModelServer,
    "resources": ReasoningGymResourcesServer,
}


def make_options() -> dict[str, dict]:
    """Return what the servers need besides a name and a port."""
    return {
        "agent": {
            "resources_server": {"type": "resources_servers", "name": "resources"},
            "model_server": {"type": "responses_api_models", "name": "model"},
        },
        "model": {
            "openai_base_url": os.environ["OPENAI_BASE_URL"],
            "openai_api_key": os.environ["OPENAI_API_KEY"],
            "openai_model": os.environ["ROLECALL_AGENTS"].split(",")[0],
        },
        "resources": {},
    }


async def run(task: dict) -> dict:
    """Play one episode with servers of its own, which end with this process."""
    sockets = {name: socket.create_server((HOST, 0)) for name in SERVERS}
    addresses = {
        name: {"host": HOST, "port": one.getsockname()[1]} for name, one in sockets.items()
    }
    client = ServerClient(
        head_server_config=BaseServerConfig(host=HOST, port=0),
        global_config_dict=OmegaConf.create(
            {name: {"any": {"any": address}} for name, address in addresses.items()}
        ),
    )
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    options = make_options()
    serving = []
    for name, kind in SERVERS.items():
        fields = {"name": name, "entrypoint": "app.py", **addresses[name], **options[name]}
        config = kind.model_fields["config"].annotation(**fields)
        serving.append(serve(kind(config=config, server_client=client), sockets[name]))
    tasks = [asyncio.create_task(one) for one in serving]
    response = await client.post("agent", "/run", json=task["info"]["row"])
    await raise_for_status(response)
    verified = await get_response_json(response)
    for one in tasks:
        one.cancel()
    return {"reward": verified["reward"]}


async def serve(server: SimpleServer, listener: socket.socket) -> None:
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


def write_tasks() -> None:
    """Write sums in the form of NeMo-Gym's rows, which `reasoning_gym` scores."""
    sums = list(itertools.product(range(2, 21), range(2, 10), range(2, 10)))
    random.Random(0).shuffle(sums)
    for split, chosen in {"test": sums[:TEST_TASKS], "train": sums[TEST_TASKS:]}.items():
        with (FOLDER / f"{split}.jsonl").open("w") as file:
            for a, b, c in chosen:
                question = f"Compute {a}+{b}+{c}."
                row = {
                    "responses_create_params": {"input": [{"role": "user", "content": question}]},
                    "question": question,
                    "answer": str(a + b + c),
                    "metadata": {"source_dataset": "chain_sum"},
                }
                print(json.dumps({"prompt": question, "row": row}), file=file)


if __name__ == "__main__":
    write_tasks()
