"""What happened to a run's folder or to its process costs a run no more than it must."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.learner import DivergedError
from rolecall.learners.local import LocalLearner
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.training.trainer import Trainer
from tests.runs.test_resume import metrics, weights
from tests.support.evidence import leave_to_evidence
from tests.toy import changed, command, relay_config, solo_config, write
from tests.training.test_trainer import Silent

pytestmark = pytest.mark.slow


def trainer_of(config: dict, folder: Path) -> Trainer:
    """A trainer that holds the folder's lock."""
    loaded = load(write(folder.with_suffix(".yaml"), config))
    made, run_folder = build(validate(loaded)), RunFolder(folder)
    run_folder.start(loaded)
    return Trainer(made, run_folder, display=Silent())


def train(config: dict, folder: Path) -> Trainer:
    made = trainer_of(config, folder)
    try:
        asyncio.run(made.train())
    finally:
        made.folder.release()
    return made


@pytest.fixture(scope="module")
def finished(model_folder, tmp_path_factory) -> tuple[dict, Path]:
    """A config, and the folder of its finished run with the checkpoints of steps 2 and 3."""
    config = relay_config(model_folder)
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(config, folder)
    assert [path.name for path in checkpoint.list_checkpoints(folder / "checkpoints")] == [
        "step-3",
        "step-2",
    ]
    return config, folder


@pytest.fixture
def copied(finished, tmp_path) -> tuple[dict, Path]:
    shutil.copytree(finished[1], tmp_path / "run")
    return finished[0], tmp_path / "run"


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "an empty pointer": lambda folder: (folder / "latest").write_text(""),
    "a binary pointer": lambda folder: (folder / "latest").write_bytes(b"\xff\xfe\x00"),
    "no pointer": lambda folder: (folder / "latest").unlink(),
    "a pointer to a step that is gone": lambda folder: (folder / "latest").write_text("step-9\n"),
    "a pointer out of the folder": lambda folder: (folder / "latest").write_text("../..\n"),
    "the newest step is gone": lambda folder: shutil.rmtree(folder / "step-3"),
    "a bit of the weights": lambda folder: flip_a_bit(folder / "step-3/a/model.safetensors"),
    "truncated weights": lambda folder: (folder / "step-3/b/model.safetensors").write_bytes(b"x"),
    "no optimizer": lambda folder: (folder / "step-3/b/learner.pt").unlink(),
    "a bit of the optimizer": lambda folder: flip_a_bit(folder / "step-3/a/learner.pt"),
    "a truncated state": lambda folder: (folder / "step-3/state.json").write_text('{"step": 3'),
    "no manifest": lambda folder: (folder / "step-3/manifest.json").unlink(),
    "a manifest of nonsense": lambda folder: (folder / "step-3/manifest.json").write_text("[1]"),
}


@pytest.mark.parametrize("name", leave_to_evidence(DAMAGES, keep=list(DAMAGES)[::3]))
def test_a_damaged_checkpoint_is_passed_over_for_the_newest_whole_one(
    finished, copied, caplog, name
):
    """The run ends with the very weights that it had, and says what it passed over."""
    config, folder = copied
    DAMAGES[name](folder / "checkpoints")
    with caplog.at_level(logging.WARNING, "rolecall.notices"):
        train(config, folder)
    assert "is damaged and not used" in caplog.text
    expected, found = weights(finished[1], 3), weights(folder, 3)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert metrics(folder) == metrics(finished[1])
    assert checkpoint.follow_pointer(folder / "checkpoints", checkpoint.LATEST).name == "step-3"
    assert not checkpoint.damage(folder / "checkpoints/step-3")


@pytest.mark.parametrize("lost", ["every checkpoint is damaged", "all checkpoints are gone"])
def test_a_run_without_a_whole_checkpoint_keeps_its_record(copied, lost):
    config, folder = copied
    before = (folder / "metrics.jsonl").read_text()
    for path in checkpoint.list_checkpoints(folder / "checkpoints"):
        if lost == "all checkpoints are gone":
            shutil.rmtree(path)
        else:
            flip_a_bit(path / "a/model.safetensors")
    if lost == "all checkpoints are gone":
        (folder / "checkpoints/latest").unlink()
    with pytest.raises(checkpoint.CheckpointError, match="3 recorded steps and no whole"):
        train(config, folder)
    assert (folder / "metrics.jsonl").read_text() == before
    assert len(list((folder / "episodes").iterdir())) == 3


def test_a_damaged_checkpoint_is_not_evaluated(copied, capsys):
    _, folder = copied
    flip_a_bit(folder / "checkpoints/step-3/a/model.safetensors")
    assert command("eval", folder) == 1
    error = capsys.readouterr().err
    assert "a/model.safetensors is not what was written" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.yaml", b"", "team: missing"),
        ("config.yaml", b"\xff\xfe\x00", "not a text file"),
        ("config.yaml", b"- a\n- b\n", "not a mapping"),
        ("config.yaml", b"team: [", "the YAML cannot be read"),
    ],
)
def test_a_damaged_config_is_told_in_plain_lines(copied, capsys, file, content, said):
    _, folder = copied
    (folder / file).write_bytes(content)
    for arguments in (
        ("train", folder),
        ("train", folder.with_suffix(".yaml"), "--output", folder),
    ):
        write(folder.with_suffix(".yaml"), copied[0])
        assert command(*arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert all(line.startswith("rolecall: ") for line in error.strip().splitlines())


def test_damaged_records_journals_and_stray_files_do_not_stop_a_run(copied, caplog):
    config, folder = copied
    records = (folder / "metrics.jsonl").read_text().splitlines()
    records[2] = records[2][:50] + "\x00\xff{{"
    (folder / "metrics.jsonl").write_text("\n".join([*records, ""]))
    (folder / "journal/step-000004.jsonl").write_bytes(b'\xff\xfe garbage\n{"id": 3}\n[]\n{"cut')
    for name in ("checkpoints/step-best", "episodes/step-x.parquet", "journal/step-a.jsonl"):
        (folder / name).write_text("not ours")
    config = changed(json.loads(json.dumps(config)), {"trainer": {"steps": 4}})
    with caplog.at_level(logging.WARNING, "rolecall.notices"):
        train(config, folder)
    assert "metrics.jsonl:3 is damaged" in caplog.text
    assert "no record of 1 of the 3 steps that are done (the first: step 2)" in caplog.text
    assert [r["step"] for r in metrics(folder) if r["kind"] == "step"] == [1, 3, 4]
    assert len(list((folder / "episodes").glob("step-0*.parquet"))) == 4


def test_a_second_process_in_a_run_folder_is_refused(copied):
    config, folder = copied
    loaded = load(write(folder.with_suffix(".yaml"), config))
    first, second = RunFolder(folder), RunFolder(folder)
    first.start(loaded)
    with pytest.raises(ConfigError, match=r"another process \(process \d+\) trains here"):
        second.start(loaded)
    first.release()
    second.start(loaded)
    second.release()


def test_more_steps_continue_a_finished_run_as_if_it_had_been_so_long_from_the_start(
    finished, copied, tmp_path
):
    config, folder = copied
    longer = changed(json.loads(json.dumps(config)), {"trainer": {"steps": 5}})
    train(longer, folder)
    straight = train(longer, tmp_path / "straight")
    expected, found = weights(straight.folder.path, 5), weights(folder, 5)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    [chapter] = map(json.loads, (folder / "chapters.jsonl").read_text().splitlines())
    assert chapter == {"after_step": 3, "changes": {"trainer.steps": [3, 5]}}
    assert RunFolder(folder).changes(load(folder.with_suffix(".yaml"))) == {}


def test_other_keys_change_only_when_that_is_asked_for(copied, capsys):
    config, folder = copied
    file = write(folder.with_suffix(".yaml"), config)
    change = "policies.a.optimizer.lr=0.01"
    assert command("train", file, change, "trainer.steps=4", "--output", folder) == 2
    error = capsys.readouterr().err
    assert "policies.a.optimizer.lr" in error
    assert "trainer.steps" not in error
    assert command("train", folder, change, "trainer.steps=4", "--allow-changes") == 0
    rates = [r["policy/a/lr"] for r in metrics(folder) if r["kind"] == "step"]
    assert rates == [1e-3] * 3 + [1e-2]
    assert command("train", folder, "trainer.steps=2") == 2
    assert "less than the 4 steps" in capsys.readouterr().err


def test_another_team_cannot_continue_from_a_checkpoint(copied, capsys):
    config, folder = copied
    config = json.loads(json.dumps(config))
    config["policies"]["c"] = config["policies"].pop("b")
    config["team"]["last"]["policy"] = "c"
    config["trainer"]["steps"] = 4
    file = write(folder.with_suffix(".yaml"), config)
    assert command("train", file, "--output", folder, "--allow-changes") == 1
    assert "step-3 has no 'c' (it has: a, b)" in capsys.readouterr().err


def test_a_step_whose_second_policy_diverges_is_not_saved_as_the_one_before(
    model_folder, tmp_path, monkeypatch
):
    """The first policy has moved: what is in memory is neither step 1 nor step 2."""
    config = relay_config(model_folder, trainer={"steps": 3, "save_every": 2})
    whole, calls = LocalLearner.update, []

    async def update(self, *given, **options):
        calls.append(self)
        if len(calls) == 4:  # policy b in step 2
            raise DivergedError("three updates in a row")
        return await whole(self, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalLearner, "update", update)
        with pytest.raises(DivergedError):
            train(config, tmp_path / "run")
    assert checkpoint.list_checkpoints(tmp_path / "run/checkpoints") == []
    train(config, tmp_path / "run")
    straight = train(config, tmp_path / "straight")
    expected, found = weights(straight.folder.path, 3), weights(tmp_path / "run", 3)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_update_that_is_interrupted_is_finished_before_it_is_saved(
    model_folder, tmp_path, monkeypatch, staleness
):
    """With stale rollouts it runs in a thread, which no cancellation reaches."""
    config = relay_config(model_folder, trainer={"save_every": 100, "max_staleness": staleness})
    config["engine"] = {"separate_weights": bool(staleness)}
    made = trainer_of(config, tmp_path / "run")
    whole, cancelled = LocalLearner.update, []

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        async def update(self, *given, **options):
            if not cancelled:
                cancelled.append(True)
                loop.call_soon_threadsafe(task.cancel)
                await asyncio.sleep(0.05)  # the cancellation arrives while policy a is updated
            return await whole(self, *given, **options)

        monkeypatch.setattr(LocalLearner, "update", update)
        await made.train()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    made.folder.release()
    assert made.done == 1
    assert (
        checkpoint.follow_pointer(tmp_path / "run/checkpoints", checkpoint.LATEST).name == "step-1"
    )
    assert [r["step"] for r in metrics(tmp_path / "run") if r["kind"] == "step"] == [1]
    saved = weights(tmp_path / "run", 1)
    for name, policy in made.run.learners.items():
        for key, value in policy.model.model.state_dict().items():
            assert f"{name}.{key}" not in saved or torch.equal(saved[f"{name}.{key}"], value)


def test_a_damaged_line_of_metrics_is_told_once_however_often_they_are_read(tmp_path, caplog):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"kind": "step", "step": 1})
    with folder.metrics.open("a") as file:
        file.write("{damaged\n")
    for step in (2, 3):
        assert folder.num_steps() == step - 1
        folder.read_metrics()[0]["kind"] = "changed by its reader"
        folder.append_metrics({"kind": "step", "step": step})
    assert [r["kind"] for r in folder.read_metrics()] == ["step"] * 3
    folder.forget_after(1)
    assert [r["step"] for r in folder.read_metrics()] == [1]
    assert caplog.text.count("is damaged and left out") == 1


def test_an_evaluation_that_was_interrupted_is_made_up_for(model_folder, tmp_path, monkeypatch):
    config = solo_config(model_folder, trainer={"steps": 3, "save_every": 100})
    config["evaluation"] |= {"every": 1}
    straight = train(config, tmp_path / "straight")
    whole = Trainer._evaluate

    async def evaluate(self, when):
        if self.done == 2 and when == "during":
            raise KeyboardInterrupt
        await whole(self, when)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_evaluate", evaluate)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(straight.folder.path)
    best = [folder / "checkpoints/best" for folder in (tmp_path / "run", straight.folder.path)]
    assert best[0].exists() == best[1].exists()
    assert not best[0].exists() or best[0].read_text() == best[1].read_text()


def test_a_run_stopped_between_an_evaluation_and_its_record_still_marks_the_best(
    model_folder, tmp_path, monkeypatch
):
    config = solo_config(model_folder, trainer={"steps": 2, "save_every": 100})
    config["evaluation"] |= {"every": 1}

    whole, count = RunFolder.append_metrics, []

    def append(self, record):
        if record["kind"] == "evaluation" and record["step"] == 1 and not count:
            count.append(1)
            raise KeyboardInterrupt
        whole(self, record)

    monkeypatch.setattr(RunFolder, "append_metrics", append)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    found = {r["step"]: r["avg@2"] for r in metrics(tmp_path / "run") if r["kind"] == "evaluation"}
    assert sorted(found) == [0, 1, 2]
    best = max(found, key=lambda step: (found[step], -step))
    pointer = checkpoint.follow_pointer(tmp_path / "run/checkpoints", checkpoint.BEST)
    assert (pointer.name if pointer else "step-0") == f"step-{best}"
