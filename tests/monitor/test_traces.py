"""What weave was told is read back with weave's own reader; nothing is sent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import pytest

from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode, Message, Task
from rolecall.monitor.traces import Weave
from rolecall.training.trainer import EpisodeTracker
from tests.toy import command, relay_config, turn, write

pytestmark = pytest.mark.slow

if find_spec("weave") is None:  # slow to import
    pytest.skip("the extra rolecall[weave] is not installed", allow_module_level=True)


@pytest.fixture
def entity() -> Iterator[str]:
    """A name of its own in weave's log, which lies in the home folder."""
    name = f"rolecall-test-{uuid4().hex[:8]}"
    yield name
    shutil.rmtree(log_of(name), ignore_errors=True)


def log_of(entity: str) -> Path:
    return Path.home() / ".weave" / "wal" / entity


def requests(folder) -> dict[str, list[dict]]:
    """Kind of request -> those in the folder's log, each file read to its end."""
    from weave.durability.wal_consumer import JSONLWALConsumer
    from weave.durability.wal_directory_manager import FileWALDirectoryManager

    found: dict[str, list[dict]] = {}
    for path in FileWALDirectoryManager(str(folder)).list_files():
        reader = JSONLWALConsumer(path)
        for entry in reader.read_pending():
            [request] = (v for v in entry.record["req"].values() if isinstance(v, dict)) if (
                entry.record["type"].startswith("call")) else [entry.record["req"]]  # fmt: skip
            found.setdefault(entry.record["type"], []).append(request)
        reader.close()
    return found


def test_an_episode_is_a_call_and_each_turn_one_below_it(tmp_path, entity):
    said = turn("solver", rewards={"form": -0.5}, advantage=0.25)
    said.messages = [Message("system", "Solve."), Message("user", "1 + 1?")]
    said.text = "It is 2."
    other = turn("verifier", path=(1,))
    good = Episode("3:x:0", Task("x", "1 + 1?"), 0, 7, [said, other], {"team": 1.0}, answer="2")
    bad = Episode("3:x:1", Task("x", "1 + 1?"), 1, 8, error="ValueError: no")
    tracker = Weave(tmp_path, project="p", entity=entity, mode="offline")
    assert isinstance(tracker, EpisodeTracker)
    tracker.episodes(3, [good, bad])
    tracker.log(3, {"score": 0.5})
    tracker.close()

    found = requests(log_of(entity) / "p")
    starts = {s["display_name"] or s["op_name"].split("/")[-1].split(":")[0]: s
              for s in found["call_start"]}  # fmt: skip
    ends = {e["id"]: e for e in found["call_end"]}
    assert set(starts) == {"3:x:0", "3:x:1", "solver", "verifier", "step"}
    episode, solver = starts["3:x:0"], starts["solver"]
    assert (episode["parent_id"], solver["parent_id"]) == (None, episode["id"])
    assert solver["trace_id"] == episode["trace_id"] != starts["3:x:1"]["trace_id"]
    assert episode["attributes"]["step"] == 3
    assert solver["inputs"]["messages"][1] == {"role": "user", "content": "1 + 1?"}
    reply = ends[solver["id"]]
    assert reply["output"]["text"] == "It is 2."
    assert reply["output"]["rewards"] == {"form": -0.5}
    assert reply["output"]["advantage"] == 0.25
    usage = {"requests": 1, "prompt_tokens": 2, "completion_tokens": 2}
    assert reply["summary"]["usage"]["p"] == usage
    assert ends[episode["id"]]["output"]["rewards"] == {"team": 1.0}
    assert "ValueError: no" in ends[starts["3:x:1"]["id"]]["exception"]
    assert ends[starts["step"]["id"]]["output"] == {"score": 0.5}


def test_a_run_traces_every_episode_that_it_trains_on(model_folder, tmp_path, entity):
    config = write(tmp_path / "team.yaml", relay_config(model_folder))
    traced = f"trackers=[{{name: weave, mode: offline, entity: {entity}}}]"
    run = tmp_path / "run"
    assert command("train", config, "trainer.steps=1", traced, "--output", run) == 0
    found = requests(log_of(entity) / "rolecall")
    kinds = [start["op_name"].split("/")[-1].split(":")[0] for start in found["call_start"]]
    summary = json.loads((run / "summary.json").read_text())
    assert set(kinds) == {"step", "episode", *summary["agents"]}
    assert len(found["call_end"]) == len(kinds)


def test_offline_needs_to_know_whom_to_send_to(tmp_path):
    with pytest.raises(ConfigError, match="mode offline needs the entity"):
        Weave(tmp_path, mode="offline")
