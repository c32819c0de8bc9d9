"""Every command that can be slow shows what it does, with a count where one is known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

from rolecall.cli.main import add_commands_of_packages, app
from rolecall.runtime import progress
from rolecall.runtime.progress import Activity, Board
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.run_folder import RunFolder
from tests.lab.simulate.runs_for_tests import write_run
from tests.support.evidence import leave_to_evidence
from tests.toy import command, relay_config, write

SHORT = (
    "rollout.groups=1", "rollout.group_size=2", "trainer.steps=1", "evaluation.tasks=1",
    "evaluation.samples=1", "evaluation.k=1",
)  # fmt: skip
# What each command that can take longer than a few seconds shows at some time.
SHOWS = {
    "train": [r"step 1: playing: \d of 2 attempts", "step 1: updating weights", "loading models"],
    "check": ["reading tasks"],
    "plan": ["measuring what batches keep"],
    "simulate": ["calibrating on", r"simulating on 2 numbers of GPUs: \d of 8 placements"],
    "eval": [r"playing test tasks: \d of \d+ attempts"],
    "ask": ["loading models", r"answering: 3 of 3 rows"],
    "crossplay": [r"playing test tasks: \d of \d+ attempts"],
    "collect": [r"collect: playing: \d of 2 attempts|playing .*\d of \d+ attempts"],
    "data": [r"writing train.jsonl: \d+ rows", "checking 3 rows of train", "reading 4 references"],
    "prove": [r"proof kl \(1 of 1\): \d claims"],
    "reproduce": [r"runs of the paper: \d of 2", r"checking configs: \d of 2"],
    "bench": [r"update against none|update against padded: \d of 2 pairs"],
    "doctor": ["trying out cpu"],
    "blame": [r"replaying \d+:"],
    "whatif": [r"replaying \d+:"],
    "spikes": [r"measuring \d+ tokens"],
    "worth": ["playing the team", "playing last alone"],
    "audit": ["auditing: 1 of 1 steps"],
}
# Those that are quick, and those that show their own progress or serve until they are ended.
OTHERS = {
    "show", "compare", "import", "info", "fetch", "tiny build", "serve environments",
    "serve sandbox", "serve search", "serve team", "watch", "export",
}  # fmt: skip


def names() -> set[str]:
    add_commands_of_packages()
    root = typer.main.get_command(app)
    return {
        name if not hasattr(part, "commands") else f"{name} {inner}"
        for name, part in root.commands.items()
        for inner in getattr(part, "commands", {"": None})
    }


def test_each_command_is_known_to_show_what_it_does_or_to_be_quick():
    assert names() == SHOWS.keys() | OTHERS


def first_turn(run: Path) -> str:
    return read_parquet(RunFolder(run).episode_file(1))[0].turns[0].id


@pytest.fixture(scope="module")
def arguments(model_folder, tmp_path_factory) -> dict[str, tuple[object, ...]]:
    """What runs each command on little work."""
    place = tmp_path_factory.mktemp("slow")
    file = write(place / "c.yaml", relay_config(model_folder))
    run = place / "run"
    assert command("train", file, *SHORT, "--output", run) == 0
    rows = [{"question": f"{n} + {n}?", "answer": f"#### {2 * n}"} for n in range(4)]
    for split, part in (("train", rows[:3]), ("test", rows[3:])):
        (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    sources = [f"--from={split}={place}/{split}.jsonl" for split in ("train", "test")]
    return {
        "train": (file, *SHORT, "--output", place / "other"),
        "check": (file,),
        "plan": ("math",),
        "simulate": (write_run(place / "simulated", model_folder), "--gpus", "2..3"),
        "eval": (run,),
        "ask": (run, "--prompts", place / "train.jsonl", "-o", place / "answers.jsonl"),
        "crossplay": (run, run),
        "collect": (file, *SHORT, "--output", place / "rows.jsonl"),
        "data": ("gsm8k", *sources, "--output", place / "data"),
        "prove": ("kl",),
        "reproduce": (
            "drmas", "--figure", "1", "--seeds", "1", *SHORT, "--output", place / "drmas"
        ),
        "bench": ("update", "--smoke", "--pairs", "1"),
        "doctor": (),
        "audit": (run,),
        "blame": (run, "--draws", "2"),
        "spikes": (run, "--measure"),
        "whatif": (run, "--draws", "2", "--turn", first_turn(run)),
        "worth": (run, "--no-train", "--answers", "2"),
    }  # fmt: skip


@pytest.fixture
def shown(monkeypatch) -> set[str]:
    """Lines that a person would see who waits, noted whenever an activity begins or moves."""
    seen: set[str] = set()

    class Noting(Board):
        def begin(self, activity: Activity) -> None:
            super().begin(activity)
            seen.add(activity.line())

        def end(self, activity: Activity) -> None:
            seen.add(activity.line())
            super().end(activity)

    monkeypatch.setattr(progress, "_board", Noting())
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", leave_to_evidence(sorted(SHOWS), keep=SHOWS.keys() - {"bench", "reproduce"})
)
def test_a_command_that_can_be_slow_shows_what_it_does(name, arguments, shown, monkeypatch):
    monkeypatch.chdir(Path(arguments["train"][-1]).parent)
    assert command(name, *arguments[name]) in (0, 1)  # doctor and bench may say what is missing
    missing = [line for line in SHOWS[name] if not any(re.search(line, each) for each in shown)]
    assert missing == [], sorted(shown)
