"""Each tracker's own reader finds what was logged, and a resumed run goes on in one record."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time

import pytest

from rolecall.core.errors import ConfigError
from rolecall.monitor.trackers import MLflow, TensorBoard, Trackio, WeightsAndBiases

pytestmark = pytest.mark.slow


def logged(make, folder) -> None:
    """Two steps, and a third after the run was started again."""
    tracker = make(folder)
    tracker.log(1, {"score": 0.25, "agent/solver/reward": 0.5, "avg@8": 0.125, "by/a:b": 0.5})
    tracker.log(2, {"score": 0.75})
    tracker.close()
    again = make(folder)
    again.log(3, {"score": 1.0})
    again.close()


def test_tensorboard_gets_every_number_under_its_own_name(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged(TensorBoard, tmp_path)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("score")] == [(1, 0.25), (2, 0.75), (3, 1.0)]
    assert found.Scalars("agent/solver/reward")[0].value == 0.5


def wandb_records(data: bytes):
    """Of a .wandb file: a header of 7 bytes, then records (checksum 4, size 2, kind 1, data)."""
    place = 7
    while place + 7 <= len(data):
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        assert kind == 1, "the test logs too little to split a record"
        yield data[place + 7 : place + 7 + size]
        place += 7 + size


@pytest.mark.evidence  # it starts a process of wandb
def test_wandb_writes_offline_into_the_run_folder(tmp_path):
    pytest.importorskip("wandb", reason="the extra rolecall[wandb] is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    logged(lambda folder: WeightsAndBiases(folder, mode="offline"), tmp_path)
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))  # by their time

    def records(file):
        return [Record.FromString(data) for data in wandb_records(file.read_bytes())]

    late = time.monotonic() + 20  # another process writes the files, at times after the run's end
    while not all(any(r.HasField("exit") for r in records(file)) for file in files):
        assert time.monotonic() < late, "a run has no end"
        time.sleep(0.1)
    found = []
    for record in (record for file in files for record in records(file)):
        items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        if "score" in items:
            found.append((int(items["_step"]), float(items["score"])))
    assert found == [(1, 0.25), (2, 0.75), (3, 1.0)]
    assert len({file.stem for file in files}) == 1, "one run, resumed"


@pytest.mark.evidence  # it imports for five seconds
def test_mlflow_keeps_one_run_in_a_database_of_the_run_folder(tmp_path):
    pytest.importorskip("mlflow", reason="the extra rolecall[mlflow] is not installed")
    from mlflow import MlflowClient

    logged(MLflow, tmp_path)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    place = client.get_experiment_by_name("rolecall").experiment_id
    [run] = client.search_runs([place])
    history = client.get_metric_history(run.info.run_id, "score")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.75), (3, 1.0)]
    assert run.data.metrics["avg_at_8"] == 0.125
    assert run.data.metrics["by/a_b"] == 0.5
    assert run.info.run_name == tmp_path.name


def test_trackio_keeps_one_run_in_its_own_folder(tmp_path):
    pytest.importorskip("trackio", reason="the extra rolecall[trackio] is not installed")
    code = """if True:
        import pathlib, sys
        from rolecall.monitor.trackers import Trackio
        for steps in ((1, 2), (3,)):
            tracker = Trackio(pathlib.Path(sys.argv[1]))
            for step in steps:
                tracker.log(step, {"score": step / 4})
            tracker.close()
    """
    place = os.environ | {"TRACKIO_DIR": str(tmp_path / "records")}  # it is read at import
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=place, check=True)
    with sqlite3.connect(tmp_path / "records" / "rolecall.db") as database:
        rows = [*database.execute("select run_name, step, metrics from metrics order by step")]
    assert [(step, json.loads(metrics)["score"]) for _, step, metrics in rows] == [
        (1, 0.25), (2, 0.5), (3, 0.75),
    ]  # fmt: skip
    assert {name for name, _, _ in rows} == {tmp_path.name}


@pytest.mark.parametrize("tracker", [TensorBoard, WeightsAndBiases, MLflow, Trackio])
def test_a_missing_package_is_an_error_that_says_what_to_install(tracker, tmp_path, monkeypatch):
    for name in ("torch.utils.tensorboard", "wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'rolecall\["):
        tracker(tmp_path)
