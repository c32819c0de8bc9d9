"""Plays an episode of `rolecall serve environments math_alone --protocol openenv`.

In this folder: ../../build/openenv/bin/python play.py http://localhost:50051
"""

import re
import sys

from openenv.core.generic_client import GenericEnvClient

with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    result = env.reset(seed=3)
    while not result.done:
        seen = result.observation
        print(f"{seen['agent']} is to answer: {seen['messages'][-1]['content']}")
        total = sum(map(int, re.findall(r"\d+", seen["messages"][-1]["content"])))
        result = env.step({"message": f"\\boxed{{{total}}}"})
    print(f"rewards: {result.observation['rewards']}")
