"""What a message recommends, as KEY=VALUE, works as it is written: in a file and as an override."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

import rolecall
from rolecall.core.errors import ConfigError
from rolecall.setup.open_environment import open_components
from rolecall.setup.plan import load_plan
from tests.toy import crew_config, relay_config, write

SOURCES = [
    Path(rolecall.__file__).parent / folder for folder in ("setup", "memory", "placement", "config")
]
CHANGE = re.compile(r"([a-z_]+(?:\.[A-Za-z0-9_]+)+)=(\{\}|[\w.:-]*\w)")
OPENAI = {"name": "openai", "url": "http://127.0.0.1:1/v1", "model": "m"}
FROZEN = {"last": {"trainable": False}}
POOL = {"opponent_pool": {"of": "a"}}
ONE_GPU = {"name": "ray", "pools": {"main": 1}}
CASES = {
    "a value head is missing": {"algorithm": "ppo"},
    "a team critic is missing": {"algorithm": "mappo"},
    "a mixer is missing": {"algorithm": "vdn"},
    "a critic reads, and has no model": {"algorithm": "mappo", "critics": {"team": {}}},
    "DPO without a reference": {"algorithm": "dpo"},
    "KL without a reference": {"algorithm": {"name": "grpo", "kl": 0.1}},
    "staleness without a copy": {"trainer": {"max_staleness": 1}},
    "staleness and determinism": {
        "trainer": {"max_staleness": 1, "deterministic": True},
        "engine": {"separate_weights": True},
    },
    "a model that is trained while agents read it": {
        "algorithm": {"name": "vdn_value", "distil": True}, "critics": {"mixer": {}},
        "trainer": {"max_staleness": 1}, "engine": {"separate_weights": True},
    },
    "a reward that compares one attempt": {
        "algorithm": "reinforce", "rewards": {"correct": 1.0, "diversity": 0.5},
        "rollout": {"groups": 2, "group_size": 1},
    },
    "one tree whose answers are compared with other attempts": {
        "workflow": {"name": "ab_mcts", "nodes": 4}, "algorithm": "grpo",
        "team": {name: {"role": "solver"} for name in ("left", "right", "last")},
        "environment": {"name": "math"}, "rollout": {"groups": 1, "group_size": 1},
    },
    "carried groups without staleness": {"rollout": {"carry": 1, "deadline_s": 10.0}},
    "greedy attempts that are all the same": {
        "evaluation": {"greedy": True, "samples": 2, "k": None}
    },
    "greedy, and sampled otherwise": {
        "evaluation": {"greedy": True, "samples": 1, "sampling": {"top_p": 0.5}}
    },
    "temperature 0 in evaluations": {"evaluation": {"sampling": {"temperature": 0.0}}},
    "engines without a cluster": {"engine": {"replicas": 2}},
    "nobody is trained": {"team": {n: {"trainable": False} for n in ("left", "right", "last")}},
    "a filtered sampler": {"team": {"left": {"sampling": {"top_p": 0.5}}}},
    "dtypes without a copy": {"engine": {"dtype": "bfloat16"}},
    "whole weights of 4 bits": {"policies": {"a": {"base": "x/y", "quantization": "4bit"}}},
    "4 bits sampled elsewhere": {
        "policies": {"a": {"base": "x/y", "quantization": "4bit", "adapter": {}}},
        "engine": {"name": "vllm"},
    },
    "4 bits trained elsewhere": {
        "policies": {"a": {"base": "x/y", "quantization": "4bit", "adapter": {}}},
        "learner": {"name": "replicated"},
    },
    "a trained opponent": {"policies": {"b": POOL}},
    "an opponent and rollouts ahead": {
        "policies": {"b": POOL}, "team": FROZEN, "trainer": {"max_staleness": 1},
        "engine": {"separate_weights": True},
    },
    "an opponent of ranks": {
        "policies": {"b": POOL}, "team": FROZEN, "learner": {"name": "fsdp"},
        "engine": {"name": "vllm"},
    },
    "turns of weights that are not kept": {
        "team": FROZEN | {"left": {"cross_policy": {"policy": "b"}}}
    },
    "a reference that cannot take over weights": {
        "algorithm": "dpo",
        "policies": {"a": {"reference": "x/y", "reference_update_every": 2}},
    },
    "exactness that vLLM has not": {
        "engine": {"name": "vllm"}, "trainer": {"deterministic": True},
    },
    "a server that is to be trained": {"policies": {"b": {"base": "", "engine": OPENAI}}},
    "tokens without a tokenizer": {
        "policies": {"b": {"base": "", "engine": OPENAI | {"token_ids": True}}}, "team": FROZEN
    },
    "weights that the trainer does not send": {
        "cluster": {"name": "ray"}, "engine": {"transfer": "direct"}
    },
    "a learner on GPUs that all have": {
        "cluster": ONE_GPU, "policies": {"a": {"colocate": True}},
        "trainer": {"max_staleness": 1}, "engine": {"separate_weights": True},
    },
}  # fmt: skip
CREW = {"candidates that train nobody": {"workflow": {"candidates": 2}}}
# They depend on the machine, or on what a learner or engine of the user's own can do.
ELSEWHERE = {
    "learner.name=fsdp", "learner.ranks=1", "learner.device=cpu", "engine.transfer=files",
    "policies.NAME.colocate=true",
}  # fmt: skip


def problems(path: Path, overrides=()) -> list[str]:
    try:
        open_components(load_plan(path, list(overrides)))
    except ConfigError as error:
        return [re.sub(r"^(\S+\.yaml(:\d+)?|command line): ", "", one) for one in error.problems]
    return []


def alternatives(problem: str) -> list[list[tuple[str, str]]]:
    """The changes that a message recommends, one list for each `or`."""
    advice = problem.rpartition("; ")[2].replace("MODEL", "tiny:math")
    found = [CHANGE.findall(one) for one in re.split(r",? or ", advice)]
    return [one for one in found if one]


def with_changes(config: dict, changes: list[tuple[str, str]]) -> dict:
    """As somebody writes them into the file, below the keys that are there."""
    for key, value in changes:
        *path, last = key.split(".")
        here = config
        for part in path:
            if not isinstance(here.get(part), dict):
                here[part] = {"name": here[part]} if part in here else {}
            here = here[part]
        here[last] = yaml.safe_load(value)
    return config


def without(config: dict, key: str) -> dict:
    *path, last = key.split(".")
    here = config
    for part in path:
        here = here[part]
    del here[last]
    return config


def merged(config: dict, changes: dict) -> dict:
    for key, value in changes.items():
        old = config.get(key)
        both = isinstance(value, dict) and isinstance(old, dict)
        config[key] = merged({**old}, value) if both else value
    return config


def copied(config: dict) -> dict:
    return yaml.safe_load(yaml.safe_dump(config))


def cases(model_folder) -> dict[str, dict]:
    relay = {name: merged(relay_config(model_folder), change) for name, change in CASES.items()}
    crew = {name: merged(crew_config(model_folder), change) for name, change in CREW.items()}
    return {**relay, **crew}


@pytest.mark.parametrize("name", [*CASES, *CREW])
def test_a_recommended_change_solves_the_problem(name, model_folder, tmp_path):
    config = cases(model_folder)[name]
    path = write(tmp_path / "team.yaml", copied(config))
    first = [line for line in problems(path) if alternatives(line)]
    assert first, problems(path)
    for problem in first:
        says = problem.rpartition("; ")[0]
        key = problem.partition(": ")[0].partition(" ")[0]
        for changes in alternatives(problem):
            start = copied(config)
            if problem.endswith(" instead"):
                start = without(start, key)
            begun = write(tmp_path / "start.yaml", copied(start))
            edited = write(tmp_path / "edited.yaml", with_changes(copied(start), changes))
            overrides = ["=".join(change) for change in changes]
            for left in (problems(begun, overrides), problems(edited)):
                assert all(not line.startswith(says) for line in left), (changes, left)
                assert all(
                    not line.startswith(f"{key}: ") or "unknown key" not in line
                    for key, _ in changes
                    for line in left
                ), (changes, left)


def texts(tree: ast.AST):
    """The strings of a file, with `{}` for what is filled in."""
    inside = {
        part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if node in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def recommended() -> set[str]:
    """The changes that messages of the package recommend, `\\0` for what is filled in."""
    pattern = re.compile(r"[a-z_\0]+(?:\.[A-Za-z0-9_\0]+)+=(?:\{\}|[\w\0]+)")
    files = [file for folder in SOURCES for file in folder.glob("*.py")]
    return {
        change
        for file in files
        if file.name not in ("suggestions.py", "load.py")
        for text in texts(without_docstrings(ast.parse(file.read_text())))
        for change in pattern.findall(text)
    }


def test_a_key_with_dots_in_a_file_is_answered_with_the_mapping_to_write(model_folder, tmp_path):
    path = write(tmp_path / "team.yaml", relay_config(model_folder, algorithm="ppo"))
    text = path.read_text()
    path.write_text(text + "critics.agent: {}\n")
    [line] = problems(path)
    assert line == (
        "critics.agent: a key with dots is for the command line; in a file write "
        "critics: {agent: ...}"
    )
    path.write_text(text + "critics: {agent: {}}\n")
    assert problems(path) == []


def without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                one
                for one in body
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
    return tree


def test_each_change_that_a_message_recommends_is_tried(model_folder, tmp_path):
    shown = set()
    for config in cases(model_folder).values():
        for line in problems(write(tmp_path / "team.yaml", copied(config))):
            shown |= {"=".join(change) for change in CHANGE.findall(line)}
    untried = {
        change.replace("\0", "*")
        for change in recommended() - ELSEWHERE
        if not any(re.fullmatch(re.escape(change).replace("\0", ".*"), one) for one in shown)
    }
    assert untried == set()
