"""Writes the results of a run on a GPU as a page."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.results import Results

HEAD = """# GPU

What a run of `make gpu` showed on this machine:

{machine}

`make gpu` checks every path that needs a GPU, and measures the embedded engine and the learner on a
random model of the shape of Qwen3-0.6B. Speeds were measured once, on a machine that did nothing
else; a check is `failed` where a number exceeds its bound.

| check | status | seconds | figures |
|---|---|---|---|
"""


def write_page(results: Results, path: Path) -> None:
    """Write the table, and below it the first lines of what failed."""
    machine = "\n".join(f"- {key}: {value}" for key, value in results.machine.items() if value)
    rows = []
    for key, one in results.results.items():
        figures = ", ".join(f"{name} {value:.4g}" for name, value in one.figures.items())
        text = one.error.replace("\n", " ") if one.status == "skipped" else figures
        rows.append(f"| `{key}` | {one.status} | {one.seconds:.1f} | {text} |")
    page = HEAD.format(machine=machine) + "\n".join(rows) + "\n"
    failed = [one for one in results.results.values() if one.status == "failed"]
    if failed:
        page += "\n## What failed\n"
        for one in failed:
            error = "\n".join(f"    {line}" for line in one.error.splitlines())
            page += f"\n`{one.part}/{one.name}`:\n\n{error}\n"
    path.write_text(page)
