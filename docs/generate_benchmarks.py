"""Makes docs/benchmarks.md and docs/scaling of the results of all processors."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolecall_lab.bench.all import BENCHMARKS

sys.path.insert(0, str(Path(__file__).parent))

import draw_scaling

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks/results"
FLOORS = RESULTS / "floors"
HEAD = """# Benchmarks

Generated from `benchmarks/results`, which has a file for each processor, by
`python docs/generate_benchmarks.py`; do not edit. `make bench` installs the peers, runs everything
and writes both; `rolecall bench NAME --keep benchmarks/results` runs one benchmark against the
peers that are installed, and replaces its rows. `make bench-avx2` switches AVX-512 off for both
sides; its tables say "limited to AVX2".

Each side lives in a process of its own; runs alternate (ours, theirs, ours, theirs ...) and only
one side computes at a time. The first run of each side is not counted. The ratio is ours / theirs
of neighbouring runs: above 1 we are faster. Every run samples new tokens; lengths are the same in
all of them. Before the first pair both sides must agree on what they did: tokens sampled or
trained, and in `update` the loss and the norm of the gradient, within 1e-4.
"""
FAIRNESS = """
## What each side does

- **rolecall** samples with the embedded engine over the weights being trained, keeps the log-prob
  of every sampled token, and is deterministic unless the name says otherwise. A GRPO step is what a
  run does, less what it writes to disk.
- **transformers** calls `generate` once for each agent's turns of all episodes, padded on the left,
  until the longest is over; only tokens that were asked for count. No log-probs are asked for.
- **vllm** (0.32.0 for CPUs, compiled, prefix cache on, engine in the same process) gets a turn's
  successor the moment the turn is over, without a barrier between agents. No log-probs are asked
  for. On AMD processors `make bench` installs zentorch 2.13.0.2, with whose products vLLM then
  computes; where a table's versions do not name it, vLLM computed without.
- **llama.cpp** (`llama-cpp-python` 0.3.36, compiled on the machine for its processor) decodes one
  token of every talk in one batch, with the prompts of those that go on. A task's prompt is read
  once. It reads the same weights from a GGUF file, in the same number format. Tokens and their
  log-probs are drawn by PyTorch from its logits.
- **openvino** (OpenVINO GenAI 2026.4.1, on Intel processors, prefix cache on) batches continuously
  and gets a turn's successor the moment the turn is over. The first talk of each task begins alone,
  so that the others find its prompt in the cache. It reads the same weights, exported by Optimum
  Intel 2.2.0, and is told to compute and to cache in their number format; its own sampler draws the
  tokens. No log-probs are asked for, except where runs begin with new weights. There the model is
  read and compiled again, because the library cannot replace weights: that counts, the export does
  not.
- **trl** is `GRPOTrainer` with its defaults and its default generation, float32, GRPO's loss, no
  reference; gradient checkpointing, logs and checkpoints are off. Micro-batches of 4 to 64 rows
  take it the same time here, within 11 %.
- **comlrl** (1.4.3) is `MAGRPOTrainer` with one turn, sampling from the whole distribution, no
  reference and no evaluations. Its agents sample the answers to one prompt at a time by
  transformers' `generate`, and each makes one optimizer step when all prompts are there.
- **padded** is a plain PyTorch loop: turns sorted by length, micro-batches of 8 (of 4 to 64 the
  fastest here), each padded to its longest turn, SDPA attention, the same loss and AdamW.
"""


FLOOR_HEAD = """
## How near this is to what the machine can do

`python benchmarks/floor.py` counts the floating-point operations and the bytes of each forward
pass of our side, and measures how fast the machine multiplies matrices of the model's size and
reads memory. The floor is the time that the operations or the bytes take at least, whichever is
longer; an update counts as three forward passes, with an adapter as two. The share is the floor
divided by the time of the run. Rows with 135 million weights or more reach 73 % to 86 %, smaller
models a third to two thirds. Profiles on an Intel Xeon (family 6, model 207, two cores) show where
the rest goes:

- **team-rollout-s**: a third of the time is Python around 284 passes and 640 turns, in many
  functions of at most 3 % each. In the loop over the layers, attention takes about 40 %. A thread's
  attention reaches 65 to 75 GFLOP/s while keys and values lie in its second cache. Those of 256
  episodes are 40 MB and more, so they come from the third: attention then reads 30 to 36 GB/s, of
  41 that two threads reach on one long array. Products of width 128 reach 150 to 200 GFLOP/s.
- **team-rollout-m**: 95 % of the time is the loop over the layers, a quarter of it attention.
  Products of 64 rows reach 250 GFLOP/s.
- **team-rollout-l-bf16**: 225 of 250 passes have at most 32 rows, and take as long as weights and
  pages take to be read. Computed part by part in 38 s, their products take 16 s, reading 17 GB/s of
  the 20 that the machine gives; attention takes 9 s, and products of passes with more rows 6 s.
- **grpo-step, team-step, update**: more than half of a step is its update. Of an update of 390 ms
  the loops after attention take 160 (their operations alone 133), attention over prefix trees 91
  (41), the loops before attention 45 (27), and PyTorch's own operations and Python 60.
  Attention's backward pass computes its scores again, which the floor does not count, nor
  exponentials.
- **grpo-step-l**: 9.1 of 16.9 s are sampling, whose floor is 6.5 s; most of the rest is the update
  of the adapter, whose floor is 5.9 s. At its floor a step would be 4.1 times as fast as TRL's.
- **grpo-step-long**: attention over prompts of a thousand tokens takes a third of the step; it
  reaches 160 GFLOP/s forward and 210 backward in two threads. Sampling takes a quarter.
"""


def page(
    results: list[dict[str, Any]],
    floors: Sequence[dict[str, Any]] = (),
    scaling: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the whole document, with tables for each processor."""
    tables = [line for one in results for line in _results(one)]
    none = ["None yet: run `make bench`.\n"]
    shares = [line for one in floors for line in _floors(one)]
    return "\n".join(
        [
            HEAD,
            "## Results\n",
            *(tables or none),
            FLOOR_HEAD,
            *shares,
            draw_scaling.section(scaling),
            *_works(),
            FAIRNESS,
        ]
    )


def _floors(kept: dict[str, Any]) -> list[str]:
    lines = [
        f"### Floor on {kept['header']['machine']['cpu']}\n",
        "| benchmark | GFLOP/s | GB/s | sampling: floor s | sampling: s | floor s | s | share "
        "| commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in kept["floors"]:
        share = one["floor_s"] / one["seconds"]
        lines.append(
            f"| {one['name']} | {one['gflop_per_s']:.0f} | {one['gb_per_s']:.0f} | "
            f"{one['sampling_floor_s']:.2f} | {one['sampling_s']:.2f} | {one['floor_s']:.2f} | "
            f"{one['seconds']:.2f} | {share:.0%} | {one['commit'][:7] or 'unknown'} |"
        )
    return [*lines, ""]


def _results(results: dict[str, Any]) -> list[str]:
    header = results["header"]
    versions = ", ".join(
        f"{name} {version or '(not installed)'}" for name, version in header["versions"].items()
    )
    machine = header["machine"]
    lines = [
        f"### {machine['cpu']}\n",
        f"{machine['cores']} cores, {header['threads']} threads a side; {versions}.\n",
    ]
    if header["missing"]:
        lines.append(f"Not installed, so not compared: {', '.join(header['missing'])}.\n")
    lines += [f"Failed: {failure}.\n" for failure in header["failed"]]
    lines += [
        "| benchmark | unit | ours | peer | theirs | ours / theirs (min .. max) | pairs | commit |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    return [*lines, *map(_row, results["records"]), ""]


def _row(record: dict[str, Any]) -> str:
    ratio = record["ratio"]
    theirs, compared = "", ""
    if ratio is not None:
        theirs = f"{record['theirs']:,.4g}"
        compared = f"**{ratio['median']:.2f}** ({ratio['min']:.2f} .. {ratio['max']:.2f})"
    return (
        f"| {record['name']} | {record['unit']} | {record['ours']:,.4g} | {record['peer']} | "
        f"{theirs} | {compared} | {record['pairs']} | {record['commit'][:7] or 'unknown'} |"
    )


def _works() -> list[str]:
    works = [f"- **{benchmark.name}**: {benchmark.work}" for benchmark in BENCHMARKS.values()]
    return ["## Works\n", *works]


def make_page() -> str:
    """Return the document of all that is kept."""
    return page(_read_all(RESULTS), _read_all(FLOORS), measured_scaling())


def _read_all(folder: Path) -> list[dict[str, Any]]:
    """Return the files of all processors."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def measured_scaling() -> list[dict[str, Any]]:
    """Return the results of benchmarks/scaling.py, each with the name of its file."""
    files = sorted((RESULTS / "scaling").glob("*.json"))
    return [json.loads(file.read_text()) | {"file": file.stem} for file in files]


if __name__ == "__main__":
    for one in measured_scaling():
        draw_scaling.draw(one, Path(__file__).parent / "scaling" / draw_scaling.picture_name(one))
    Path(__file__).with_name("benchmarks.md").write_text(make_page())
