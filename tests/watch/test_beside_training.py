"""A run that is watched while it trains is the same run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.toy import relay_config, write
from tests.training.test_trainer import turns
from tests.watch.browser import serving

QUESTIONS = (
    "runs",
    "run?run=run",
    "changes?run=run&after=",
    "step?run=run",
    "find?run=run&q=adv>0",
)


def train(config: Path, output: Path) -> None:
    words = ("train", str(config), "--output", str(output))
    subprocess.run(
        [sys.executable, "-m", "rolecall", *words], check=True, stdout=subprocess.DEVNULL
    )


def weights(run: Path) -> dict[str, str]:
    files = sorted((run / "checkpoints").rglob("*.safetensors"))
    return {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def keep_asking(address: str, ended: threading.Event, answers: list[int]) -> None:
    while not ended.wait(0.25):  # four pages would ask as often
        for question in QUESTIONS:
            try:
                with urllib.request.urlopen(f"{address}/api/{question}") as answer:
                    answers.append(answer.status)
            except urllib.error.HTTPError as error:  # 404 before the run has begun
                answers.append(error.code)


@pytest.mark.slow
def test_a_run_that_is_watched_gives_the_same_bits(model_folder, tmp_path):
    config = write(tmp_path / "c.yaml", relay_config(model_folder, trainer={"steps": 6}))
    train(config, tmp_path / "alone" / "run")
    (tmp_path / "watched").mkdir()
    ended, answers = threading.Event(), list[int]()
    with serving(tmp_path / "watched") as address:
        asking = threading.Thread(target=keep_asking, args=(address, ended, answers), daemon=True)
        asking.start()
        try:
            train(config, tmp_path / "watched" / "run")
        finally:
            ended.set()
            asking.join()
    assert answers.count(200) > 20
    assert set(answers) <= {200, 404}
    alone, watched = tmp_path / "alone" / "run", tmp_path / "watched" / "run"
    assert turns(alone) == turns(watched)
    assert weights(alone) == weights(watched) != {}
    names = [{path.name for path in run.iterdir()} for run in (alone, watched)]
    assert names[0] == names[1]
