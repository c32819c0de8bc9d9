"""Plays episodes of an environment of verifiers, which `env.toml` describes.

In this folder: ../../build/verifiers/bin/python verifiers_env.py
writes the tasks of the taskset, and then: rolecall train team.yaml
"""

import json
import os
import sys
import tomllib
from pathlib import Path
from statistics import fmean

import sums  # noqa: F401  # what is imported here is ready before an episode begins
import verifiers.v1 as vf
import verifiers.v1.tasksets  # noqa: F401
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

FOLDER = Path(__file__).resolve().parent
TEST_TASKS = 200
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # uv, for `null`


def open_env() -> vf.Env:
    text = (FOLDER / "env.toml").read_text()
    return load_environment(resolve_env_config(tomllib.loads(text)["env"]))


async def run(task: dict) -> dict:
    """Play one episode; its answer is the last reply of the seat that ended last."""
    env = open_env()
    kind = type(env.taskset).task_type()
    data = kind.data_type().model_validate(task["info"]["data"])
    address = os.environ["OPENAI_BASE_URL"]
    client = vf.EvalClientConfig(base_url=address, api_key_var="OPENAI_API_KEY")
    first_agent = os.environ["ROLECALL_AGENTS"].split(",")[0]  # plays seats without a model
    context = vf.ModelContext(model=first_agent, client=client)
    async with env.serving():
        episode = await env.run_episode(kind(data, env.config.taskset.task), context)
    rewards = read_rewards(episode)
    return {"answer": episode.traces[-1].last_reply, "rewards": rewards}


def read_rewards(episode: vf.Episode) -> dict[str, float]:
    """Return the mean reward of each agent's traces; raises RuntimeError if one has none."""
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError(f"{errors[0].type}: {errors[0].message}")
    rewards: dict[str, list[float]] = {}
    for trace in episode.traces:
        if not trace.rewards or None in trace.rewards.values():
            raise RuntimeError(f"verifiers has no reward for the seat {trace.agent.name}")
        rewards.setdefault(trace.agent.config.model, []).append(trace.reward)
    return {agent: fmean(values) for agent, values in rewards.items()}


def write_tasks() -> None:
    tasks = list(open_env().taskset.shuffle())
    for split, chosen in {"test": tasks[:TEST_TASKS], "train": tasks[TEST_TASKS:]}.items():
        with (FOLDER / f"{split}.jsonl").open("w") as file:
            for task in chosen:
                data = task.data.model_dump(mode="json", exclude_defaults=True)
                print(json.dumps({"prompt": task.data.prompt_text, "data": data}), file=file)


if __name__ == "__main__":
    write_tasks()
