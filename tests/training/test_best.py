"""The checkpoint `best` of runs whose scores may be any number."""

from __future__ import annotations

from pathlib import Path

from rolecall.core.types import Episode
from tests.algorithms.test_every_algorithm import case, train
from tests.toy import Letters, LettersWorld

HERE = Path(__file__).resolve()


class Losing(Letters):
    def open(self, task, *, seed):
        return LosingWorld(task, seed, 0.0, 0.0)


class LosingWorld(LettersWorld):
    """Whatever is said scores less than -1."""

    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": -5.0 + len(set(episode.answer)) / 100}


def test_a_run_whose_scores_are_below_minus_one_has_a_best_checkpoint(model_folder, tmp_path):
    config = case(model_folder, "grpo", environment={"name": f"{HERE}:Losing"})
    config["trainer"] = {"steps": 2, "save_every": 1}
    config["evaluation"] = {"tasks": 2, "samples": 2, "k": 2, "every": 1}
    train(config, tmp_path / "run")
    assert (tmp_path / "run/checkpoints/best").exists()
