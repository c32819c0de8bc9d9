"""Describes the teams of Dr. MAS (2602.08847): of tables 1 to 3 and of the figures, in two sizes.

`published` has the paper's models, data and settings; `small` the same teams on the models inside
the package, where a run takes a minute or two on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from omegaconf import OmegaConf

from rolecall.config.load import find, read_files
from rolecall_lab.reproduce.drmas_published import ABLATION, PRICES, find_published
from rolecall_lab.reproduce.settings import Published, Setting, Task, Weights

Size = Literal["small", "published"]
Keys = dict[str, Any]

RECIPES: dict[tuple[Size, Task], tuple[str, str]] = {  # of one agent, of the team
    ("small", "math"): ("math_alone", "math"),
    ("small", "search"): ("search_alone", "search"),
    ("published", "math"): ("grpo_math", "drmas_math"),
    ("published", "search"): ("grpo_search", "drmas_search"),
}
BASES: dict[tuple[Size, Task], tuple[str, str]] = {  # the smaller one first
    ("small", "math"): ("tiny:math_small", "tiny:math"),
    ("small", "search"): ("tiny:search_small", "tiny:search"),
    ("published", "math"): ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B"),
    ("published", "search"): ("Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B"),
}
ROUTER = "verifier"  # of the search team; keeps the larger model where models differ
ALGORITHMS: dict[str, Keys] = {
    "grpo": {"name": "grpo", "agg": "token"},  # the loss of Dr. MAS: only the comparison differs
    "drmas": {"name": "drmas"},
    "agent_mean": {"name": "drmas", "mean": "agent", "std": "task"},
    "agent_std": {"name": "drmas", "mean": "task", "std": "agent"},
}
SAMPLING = {"temperature": 0.6, "top_p": 0.95}  # of evaluations, appendix B
SAMPLES = 16
# What the recipes leave out of the paper: its training set for maths, all of its benchmarks, two
# rounds over the training set for maths and one for search, and all eight GPUs of a machine.
MATH_DATA = {
    "train": "data/dapo-filter",
    "test": ["aime24", "aime25", "data/amc", "math500", "minerva", "olympiadbench"],
}
EPOCHS: dict[Task, int] = {"math": 2, "search": 1}
EVERY_TASK = 1_000_000  # more than any benchmark has
GPUS = 8
LEARNER = {
    "name": "fsdp", "ranks": GPUS, "dtype": "bfloat16", "checkpoint_activations": True,
    "tokens_per_batch": 16384,
}  # fmt: skip
# How long the small runs are: their rewards have risen by then.
SMALL: dict[Task, Keys] = {
    "math": {"rollout": {"groups": 12}, "trainer": {"steps": 16}, "evaluation": {"tasks": 20}},
    "search": {"rollout": {"groups": 12}, "trainer": {"steps": 16}, "evaluation": {"tasks": 20}},
}
# Who is paid in units of its own, and from which score on: most solutions are right at the start,
# most searches are not.
SPIKED: dict[Task, Keys] = {
    "math": {"agent": "solver", "par": 1.0},
    "search": {"agent": "searcher", "par": 0.0},
}
# Few tasks a step with many attempts each, so that one task's factor is seen in a step's norm.
HEAVY: dict[Task, Keys] = {
    "math": {"rollout": {"groups": 4, "group_size": 32}, "trainer": {"steps": 24}},
    "search": {"rollout": {"groups": 2, "group_size": 48}, "trainer": {"steps": 24}},
}


def table(number: int, size: Size) -> list[Setting]:
    """Return the rows of table 1 (maths), 2 (search) or 3 (which statistics are an agent's own)."""
    if number == 3:
        return list(_ablation(size))
    task: Task = "math" if number == 1 else "search"
    return list(_teams(task, size))


def figure(number: int, size: Size) -> list[Setting]:
    """Gradient norms in maths (1) and in search (3), or a team of two models (4)."""
    if number == 4:
        return list(_mixed(size))
    return list(_norms("math" if number == 1 else "search", size))


def _teams(task: Task, size: Size) -> Iterator[Setting]:
    for base in BASES[size, task]:
        if size == "small":
            yield _setting(task, size, base, "own", "untrained")
        yield _setting(task, size, base, "one", "grpo")
        for weights in ("shared", "own"):
            for algorithm in ("grpo", "drmas"):
                yield _setting(task, size, base, weights, algorithm)


def _ablation(size: Size) -> Iterator[Setting]:
    """Yield settings of the larger model with own weights.

    The corners are rows of table 2, and trained once.
    """
    base = BASES[size, "search"][1]
    for (mean, std), scores in ABLATION.items():
        name = {("task", "task"): "grpo", ("agent", "agent"): "drmas"}.get(
            (mean, std), "agent_mean" if mean == "agent" else "agent_std"
        )
        yield _setting("search", size, base, "own", name, scores=Published(*scores))


def _norms(task: Task, size: Size) -> Iterator[Setting]:
    """Yield the settings of the figures of gradient norms.

    In the paper's size they are runs of tables 1 and 2; in the small one rewards are heavy-tailed.
    """
    base = BASES[size, task][0 if size == "published" else 1]
    for algorithm in ("grpo", "drmas"):
        if size == "published":
            yield _setting(task, size, base, "own", algorithm)
        else:
            own = {"rolecall_lab.reproduce.heavy_tailed:HeavyTailed": SPIKED[task]}
            team = _recipe(size, task, "own")["team"]  # a penalty has a scale of its own
            changes = {
                **HEAVY[task],
                "rewards": own,
                "team": {a: {"invalid_penalty": 0.0} for a in team},
            }
            yield _setting(task, size, base, "own", algorithm, changes=changes, kind="heavy")


def _mixed(size: Size) -> Iterator[Setting]:
    """Dr. MAS with one model for all agents, and with a smaller one for all but the router."""
    small, large = BASES[size, "search"]
    if size == "published":
        small = "meta-llama/Llama-3.2-3B-Instruct"
    price = {True: PRICES["Qwen/Qwen2.5-7B"], False: PRICES["meta-llama/Llama-3.2-3B-Instruct"]}
    for kind in ("priced", "mixed"):
        bases = {
            agent: large if agent == ROUTER or kind == "priced" else small
            for agent in _recipe(size, "search", "own")["team"]
        }
        cost = {
            agent: {"prompt": price[base == large], "completion": price[base == large]}
            for agent, base in bases.items()
        }
        changes = {"policies": {name: {"base": base} for name, base in bases.items()}}
        yield _setting(
            "search", size, large, "own", "drmas", changes={**changes, "prices": cost}, kind=kind
        )


def _setting(
    task: Task,
    size: Size,
    base: str,
    weights: Weights,
    algorithm: str,
    *,
    changes: Keys | None = None,
    kind: str = "",
    scores: Published | None = None,
) -> Setting:
    config = _recipe(size, task, weights)
    for policy in config["policies"].values():
        policy["base"] = base
    if weights == "shared":
        config["policies"] = {"team": next(iter(config["policies"].values()))}
        for agent in config["team"].values():
            agent["policy"] = "team"
    if algorithm != "untrained":
        config["algorithm"] = _options(size, task) | ALGORITHMS[algorithm]
    if "rewards" in (changes or {}):
        config["rewards"] = {}
    config = _over(_over(config, _of_size(size, task, config)), changes or {})
    if size == "published":
        config["trainer"] = {"epochs": EPOCHS[task]}
    real = BASES["published", task][BASES[size, task].index(base)]
    return Setting(
        task,
        base,
        weights,
        algorithm,
        config,
        published=scores or (None if kind else find_published(task, real, weights, algorithm)),
        kind=kind,
    )


def _recipe(size: Size, task: Task, weights: Weights) -> Keys:
    """A recipe as it is written, without those that it extends."""
    name = RECIPES[size, task][weights != "one"]
    recipe: Any = OmegaConf.to_container(read_files(find(name), {}))
    return dict(recipe)


def _options(size: Size, task: Task) -> Keys:
    """Return the options of the team's recipe that all algorithms have.

    They are its clips, minibatches and entropy.
    """
    named = _recipe(size, task, "own")["algorithm"]
    return {k: v for k, v in named.items() if k != "name"} if isinstance(named, dict) else {}


def _of_size(size: Size, task: Task, config: Keys) -> Keys:
    evaluation = {"samples": SAMPLES, "k": SAMPLES, "sampling": SAMPLING, "every": 0}
    if size == "small":
        own = SMALL[task]
        return {**own, "evaluation": {**own["evaluation"], **evaluation}}
    changes: Keys = {
        "evaluation": {"tasks": EVERY_TASK, **evaluation},
        "policies": {name: {"colocate": True} for name in config["policies"]},
        "learner": LEARNER | ({"offload": True} if task == "search" else {}),
        "engine": {
            "name": "vllm",
            "replicas": GPUS,
            "memory": round(0.8 / len(config["policies"]), 2),
        },
        "cluster": {"name": "ray", "pools": {"main": {"gpus": GPUS}}},
    }
    return changes | ({"environment": MATH_DATA} if task == "math" else {})


def _over(old: Any, new: Any) -> Any:
    """Mappings are merged key by key, all else is replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {key: _over(old.get(key), new.get(key, old.get(key))) for key in {**old, **new}}
