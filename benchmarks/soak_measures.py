"""Measures for gateway_soak.py: what a process holds, and how fast its memory grows."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


def measure_process() -> dict[str, float]:
    """Return what this process holds."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    sockets = {link[8:-1] for link in links if link.startswith("socket:")}
    return {
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "files": len(links),
        "sockets": len(sockets),
        "tcp": sum(inode in sockets for inode in read_tcp()),
        "children": len(list_children(os.getpid())),
        "tasks": len(asyncio.all_tasks()),
    }


def read_tcp() -> list[str]:
    """Return the inodes of sockets that listen or are established."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    return [fields[9] for fields in lines if fields[3] in ("01", "0A")]


def list_children(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    own = []
    with suppress(OSError):  # it has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            own += map(int, (task / "children").read_text().split())
    return own + [below for child in own for below in list_children(child)]


def fit_slope(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the growth of resident memory over the second half, with 1.96 standard errors."""
    half = rows[len(rows) // 2 :]
    hours = np.array([row["seconds"] for row in half]) / 3600
    memory = np.array([row["rss_mb"] for row in half])
    if len(half) < 3:
        return {"mb_per_hour": float("nan"), "interval": float("nan")}
    (slope, _), covariance = np.polyfit(hours, memory, 1, cov="unscaled")
    residuals = memory - np.polyval(np.polyfit(hours, memory, 1), hours)
    variance = float(residuals @ residuals) / (len(half) - 2)
    error = float(np.sqrt(variance * covariance[0, 0]))
    return {"mb_per_hour": float(slope), "interval": 1.96 * error}
