"""Runs the commands as a user does: a demo run, its continuation, an evaluation, the doctor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.gpu.checks import Figures, Machine, check

# Asks both agents through the gateway, as a client of OpenAI does.
PROGRAM = """
import json, os, urllib.request

def ask(agent, text):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": agent, "messages": [{"role": "user", "content": text}]}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
         "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]

def run(task):
    solution = ask("solver", task["prompt"])
    ask("verifier", task["prompt"] + "\\n" + solution)
    return solution
"""
SMALL = ("evaluation.tasks=4", "evaluation.samples=2", "rollout.groups=4", "rollout.group_size=4")


@check
def the_demo_learns(machine: Machine) -> Figures:
    """`rolecall train math` on the GPU ends well, and sampler and learner agree."""
    steps = 1 if machine.is_dry else 16
    options = SMALL if machine.is_dry else ()
    folder = _train(machine, "demo", "math", f"trainer.steps={steps}", *options)
    summary = json.loads((folder / "summary.json").read_text())
    records = _read_metrics(folder)
    figures = {
        "before": _read_score(summary["before"]), "after": _read_score(summary["after"]),
        "largest mismatch": max(_mismatches(records), default=0.0),
    }  # fmt: skip
    assert machine.is_dry or figures["after"] > figures["before"] + 0.1, figures
    return figures


@check
def adapters_in_bfloat16_train(machine: Machine) -> Figures:
    """Two adapters over one frozen base in bfloat16."""
    folder = _train(
        machine, "adapters", "math", "trainer.steps=2", *SMALL,
        "policies.solver.adapter={rank: 8}", "policies.verifier.adapter={rank: 8}",
        "learner.dtype=bfloat16",
    )  # fmt: skip
    return {"largest mismatch": max(_mismatches(_read_metrics(folder)), default=0.0)}


@check
def a_resumed_run_equals_a_straight_one(machine: Machine) -> None:
    """Two steps and then two more end at the bits of four in a row."""
    straight = _train(machine, "straight", "math", "trainer.steps=4", *SMALL)
    resumed = _train(machine, "resumed", "math", "trainer.steps=2", *SMALL)
    _run("train", str(resumed), "trainer.steps=4")
    for policy in ("solver", "verifier"):
        one, other = (_load_weights(folder, policy) for folder in (straight, resumed))
        for name, weight in one.items():
            assert torch.equal(weight, other[name]), f"{policy}: {name} differs"


@check
def offload_and_free_cache_train_the_same(machine: Machine) -> None:
    """Giving memory back between sampling and updates changes no bit of what is learned."""
    plain = _train(machine, "kept", "math", "trainer.steps=2", *SMALL)
    freed = _train(
        machine, "freed", "math", "trainer.steps=2", *SMALL, "learner.offload=true",
        "engine.free_on_update=true",
    )  # fmt: skip
    for policy in ("solver", "verifier"):
        one, other = (_load_weights(folder, policy) for folder in (plain, freed))
        assert all(torch.equal(weight, other[name]) for name, weight in one.items())


@check
def separate_weights_while_training(machine: Machine) -> None:
    """The next step is collected on copies of the weights while this one trains."""
    _train(
        machine, "late", "math", "trainer.steps=3", *SMALL, "engine={separate_weights: true}",
        "trainer.max_staleness=1",
    )  # fmt: skip


@check
def one_rank_of_fsdp_trains(machine: Machine) -> None:
    _train(
        machine, "fsdp", "math", "trainer.steps=2", *SMALL, "learner={name: fsdp, ranks: 1}",
        *([] if machine.is_dry else ["learner.dtype=bfloat16"]),
    )  # fmt: skip


@check
def a_program_of_its_own_trains(machine: Machine) -> Figures:
    """Replies through the gateway have the log-probs that the learner computes again."""
    file = machine.scratch / "program.py"
    file.write_text(PROGRAM)
    folder = _train(
        machine, "program", "math", "trainer.steps=2", *SMALL, "workflow={name: external}",
        f"workflow.function={file}:run",
    )  # fmt: skip
    return {"largest mismatch": max(_mismatches(_read_metrics(folder)))}


@check
def an_evaluation_ends(machine: Machine) -> None:
    folder = machine.scratch / "runs" / "straight"
    _run("eval", str(folder), "evaluation.samples=2", "evaluation.tasks=4")


@check
def the_doctor_finds_nothing(machine: Machine) -> Figures:
    """`rolecall doctor` says that every fast path holds."""
    output = _run("doctor", "--json")
    devices = json.loads(output)["devices"]
    device = devices["cpu" if machine.is_dry else "cuda:0"]
    assert device["agrees"], device
    assert machine.is_dry or all(device["paths"].values()), device["paths"]
    return {name: device[name] for name in ("copy_gb_per_s", "float32_tflops", "bfloat16_tflops")}


def _train(machine: Machine, name: str, *arguments: str) -> Path:
    folder = machine.scratch / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    device = "cpu" if machine.is_dry else "cuda"
    named = any(argument.startswith("learner={") for argument in arguments)
    _run("train", *arguments, *([] if named and machine.is_dry else [f"learner.device={device}"]),
         "--output", str(folder))  # fmt: skip
    return folder


def _run(*arguments: str) -> str:
    """Return what a command printed. Raises RuntimeError with its last lines where it failed."""
    found = subprocess.run(
        [sys.executable, "-m", "rolecall", *arguments], capture_output=True, text=True, check=False
    )
    if found.returncode:
        lines = (found.stdout + found.stderr).strip().splitlines()
        raise RuntimeError(f"status {found.returncode}: " + "\n".join(lines[-5:]))
    return found.stdout


def _read_score(evaluation: dict) -> float:
    return next(value for name, value in evaluation.items() if name.startswith("avg@"))


def _read_metrics(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _mismatches(records: list[dict]) -> list[float]:
    """Return the largest difference between sampler and learner of each step, in nats."""
    return [
        float(value)
        for record in records
        for name, value in record.items()
        if "mismatch" in name and isinstance(value, int | float)
    ]


def _load_weights(folder: Path, policy: str) -> dict[str, torch.Tensor]:
    latest = (folder / "checkpoints" / "latest").read_text().strip()
    [file] = (folder / "checkpoints" / latest / policy).glob("*.safetensors")
    return load_file(file)
