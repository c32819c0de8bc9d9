"""`rolecall doctor` tries out this machine: its devices, their speed, and which fast paths hold."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import get_args

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from rolecall.core.errors import first_line
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.json_types import Record
from rolecall.doctor.info import collect
from rolecall.engines.local.engine import LocalEngine
from rolecall.learners.mismatch import LARGEST_EXACT
from rolecall.models.attention.flex_proof import Use, unfit, was_tried
from rolecall.models.attention.layouts import make_layout
from rolecall.models.cpu import product_trials
from rolecall.models.cpu.fused_attention import Heads
from rolecall.models.devices import memory_in
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.call_tree import IdleBarrier
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity

MODEL = "tiny:math"
COPIED = 2**28  # bytes
SIDES = (256, 512, 1024, 2048)  # of the matrices that are multiplied, one after the other
LONG_S = 0.1  # a product that takes longer is not tried with larger matrices
TRIES = 3
PRODUCT_ROWS = (8, 256)  # of states that are multiplied with a weight, as sampling does it
ADVICE = {  # package or program -> what it is for
    "vllm": "faster sampling of real models on a GPU: pip install 'rolecall[vllm]'",
    "bwrap": "agents that run programs: apt-get install bubblewrap",
}


def doctor() -> Record:
    """Print and return the report; `ok` says whether sampler and learner agree everywhere."""
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    report: Record = {
        "versions": collect()["versions"],
        "devices": {str(device): _followed(device) for device in devices},
        "missing": {name: advice for name, advice in ADVICE.items() if not _is_there(name)},
    }
    report["ok"] = all(device["agrees"] for device in report["devices"].values())
    show(report)
    return report


def _followed(device: torch.device) -> Record:
    with activity(f"trying out {device}: copies, products, sampling and training"):
        return _examined(device)


def _examined(device: torch.device) -> Record:
    figures: Record = {
        "memory_gb": memory_in(device) / 1e9,
        "copy_gb_per_s": 2 * COPIED / 1e9 / _seconds(_copying(device), device),
    }
    for name in ("float32", "bfloat16"):
        figures[f"{name}_tflops"] = _operations_per_second(device, getattr(torch, name)) / 1e12
    if device.type == "cpu":
        figures["products"] = {
            f"{name}, {rows} rows": product_trials.speeds(SIDES[-2], SIDES[-2], rows, dtype=dtype)
            for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
            for rows in PRODUCT_ROWS
        }
    try:
        return figures | asyncio.run(_tried(device))
    except Exception as error:  # whatever a device raises is what the doctor is asked for
        return figures | {"agrees": False, "paths": {}, "problem": first_line(error)}


async def _tried(device: torch.device) -> Record:
    """Sample with a small model and score what it said: log-probs that differ are a fault."""
    base = load_model(MODEL, device=device, dtype=torch.float32)
    model = LanguageModel(base, load_tokenizer(MODEL))
    engine = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.1)
    prompt = np.arange(5, 25, dtype=np.int32)
    request = Request("doctor", "p", prompt, Sampling(max_tokens=32), 0, ("t", 0, (0,)), n=4)
    completions = await engine.generate(request)
    gaps = []
    for one in completions:  # by the modules of transformers, which the engine may not sample from
        ids = torch.from_numpy(np.concatenate([prompt, one.tokens])).long().to(device)
        with torch.no_grad():
            logprobs = model.logprobs(ids)[len(prompt) - 1 :].cpu().numpy()
        gaps.append(np.abs(one.logprobs - logprobs).max())
    scheduler = engine._schedulers["p"]
    heads = any(isinstance(module, Heads) for module in model.model.modules())
    paths = {"fused attention": heads, "plain decoding": scheduler.llama is not None}
    if device.type == "cuda":
        recorded = scheduler._recorded
        paths = {"recorded steps": bool(recorded) and not (recorded and recorded.unfit)}
        _train_a_row(device, heads=(model.config.num_attention_heads, model.num_kv_heads))
        for use in get_args(Use):
            paths[f"FlexAttention in {use}"] = was_tried(use, device) and not unfit(use, device)
    largest = float(max(gaps))
    close = LARGEST_EXACT if device.type == "cpu" else 10 * LARGEST_EXACT
    return {"agrees": largest <= close, "largest_gap": largest, "paths": paths, "problem": ""}


def _train_a_row(device: torch.device, *, heads: tuple[int, int]) -> None:
    """Train one row in both dtypes, as an update does, which looks at FlexAttention first."""
    parents = np.arange(-1, 15, dtype=np.int32)
    for dtype in (torch.float32, torch.bfloat16):
        layout = make_layout(parents, parents + 1, device=device)
        query, key = (torch.zeros(n, 16, 64, dtype=dtype, device=device) for n in heads)
        layout.attend(0, query.requires_grad_(), key, key, scale=0.125)


def _copying(device: torch.device) -> Callable[[], object]:
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Return the speed of the largest product that is quick enough to be tried.

    A processor without instructions for bfloat16 needs minutes for the largest of all.
    """
    for side in SIDES:
        seconds = _seconds(_multiplying(device, dtype, side), device)
        if seconds > LONG_S:
            break
    return 2 * side**3 / seconds


def _multiplying(device: torch.device, dtype: torch.dtype, side: int) -> Callable[[], object]:
    factor = torch.ones(side, side, device=device, dtype=dtype)
    return lambda: factor @ factor.t()  # as layers multiply; plain ones are slower in bfloat16


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the quickest of some tries, after one that is not counted."""
    took = []
    for _ in range(TRIES + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - started)
    return min(took[1:])


def _is_there(name: str) -> bool:
    try:
        return bool(shutil.which(name) or version(name))
    except PackageNotFoundError:
        return False


def show(report: Record, console: Console | None = None) -> None:
    console = console or PlainConsole()
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    console.print(versions, highlight=False, soft_wrap=True)
    table = Table("", *report["devices"], title="Devices", title_justify="left")
    rows: dict[str, Callable[[Record], str]] = {
        "memory": lambda d: f"{d['memory_gb']:.1f} GB",
        "copies": lambda d: f"{d['copy_gb_per_s']:.1f} GB/s",
        "float32": lambda d: f"{d['float32_tflops']:.3f} TFLOP/s",
        "bfloat16": lambda d: f"{d['bfloat16_tflops']:.3f} TFLOP/s",
        "fast paths": lambda d: ", ".join(
            f"{name}: {'holds' if holds else 'off'}" for name, holds in d["paths"].items()
        ),
        "sampler and learner": lambda d: (
            d["problem"] or f"{'agree' if d['agrees'] else 'DIFFER'} to {d['largest_gap']:.2g} nats"
        ),
    }
    for name, cell in rows.items():
        table.add_row(name, *map(cell, report["devices"].values()))
    console.print(table)
    for name, ways in report["devices"]["cpu"].get("products", {}).items():
        speeds = ", ".join(f"{way} {speed / 1e9:,.0f}" for way, speed in ways.items())
        console.print(f"product, {name}: {speeds} GFLOP/s", highlight=False, soft_wrap=True)
    kept = cache_folder() / "products.json"
    console.print(
        f"What is fastest for a model's weights is remembered in {kept}; delete it to try again",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    for name, advice in report["missing"].items():
        line = f"{name} is not installed; it is for {advice}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
