"""The command that sets simulated runs beside real ones works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.alone
def test_one_setting_is_simulated_and_run(tmp_path):
    """How near they are is for a machine that does nothing else: docs/simulate.md."""
    command = [
        sys.executable, ROOT / "benchmarks/simulated_vs_real.py", "--only", "8 groups", "--repeats",
        "1", "--steps", "3", "--json", tmp_path / "found.json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    *published, found = json.loads((tmp_path / "found.json").read_text())
    assert [one["measured_s"] for one in published] == [152.0, 192.0, 34.5]
    assert found["setting"] == "8 groups"
    assert found["simulated_s"] > 0
    assert found["least_s"] <= found["measured_s"] <= found["most_s"]
    assert f"| 8 groups | {found['simulated_s']:.2f} |" in done.stdout
