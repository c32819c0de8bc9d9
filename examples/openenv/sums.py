"""An environment of OpenEnv: add three numbers, with two tries.

It needs the package openenv. In this folder: ../../build/openenv/bin/python sums.py 8000
"""

import random
import re
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Answer(Action):
    text: str


class Question(Observation):
    text: str


class SumEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self._state = [], State()

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Question:
        draw = random.Random(seed)
        self.numbers = [draw.randint(2, 20), draw.randint(2, 9), draw.randint(2, 9)]
        self._state = State(episode_id=episode_id, step_count=0)
        return Question(text=f"Compute {'+'.join(map(str, self.numbers))}.")

    def step(self, action: Answer) -> Question:
        self._state.step_count += 1
        boxes = re.findall(r"\\boxed\{(\d+)\}", action.text)
        if boxes and int(boxes[-1]) == sum(self.numbers):
            return Question(text="Right.", done=True, reward=1.0)
        return Question(text="Try again.", done=self._state.step_count == 2, reward=0.0)

    @property
    def state(self) -> State:
        return self._state


app = create_app(SumEnvironment, Answer, Question, env_name="sums", max_concurrent_envs=16)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
