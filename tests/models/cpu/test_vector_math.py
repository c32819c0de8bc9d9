"""The first call of a function of PyTorch, by two threads, is as accurate as the others.

Each first call needs a process of its own. They are forked from one that has imported PyTorch.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROCESSES = 1_000  # of which about 10 computed half of the numbers with errors of 1e-4
FIRST_CALLS = f"""
import json, os
import numpy as np
import torch
import rolecall.models.cpu

torch.set_num_threads(2)
numbers = np.linspace(0.01, 3, 3840, dtype=np.float32)  # two threads share more than 2048
functions = ["cos", "exp", "log", "sin", "tanh"]
wrong = []
for process in range({PROCESSES}):
    name = functions[process % len(functions)]
    right = getattr(np, name)(numbers.astype(np.float64))
    child = os.fork()
    if child == 0:
        values = getattr(torch, name)(torch.from_numpy(numbers)).numpy()
        os._exit(int(np.abs(values - right).max() > 2e-6))
    if os.waitpid(child, 0)[1]:
        wrong.append(name)
print(json.dumps(wrong))
"""


@pytest.mark.slow
def test_first_calls_by_two_threads_are_accurate():
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, timeout=250, check=True
    )
    assert json.loads(done.stdout) == []
