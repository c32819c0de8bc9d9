"""Numbers reach TensorBoard's event files."""

from __future__ import annotations

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rolecall.monitor.trackers import TensorBoard


def test_every_number_of_a_step_becomes_a_scalar(tmp_path):
    tracker = TensorBoard(tmp_path)
    tracker.log(1, {"score": 0.25, "agent/solver/reward": 0.5})
    tracker.log(2, {"score": 0.75})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("score")] == [(1, 0.25), (2, 0.75)]
    assert [e.value for e in events.Scalars("agent/solver/reward")] == [0.5]
