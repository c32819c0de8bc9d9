"""What a run on rows of a data set shows: losses and tokens, and no rewards that nobody gave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecall.monitor.panels import panels
from rolecall.storage.run_folder import RunFolder
from tests.cli.test_cli import rolecall
from tests.toy import solo_config, write

SHOWN = {
    "sft": [{"prompt": letter, "completion": letter * 2} for letter in "abcd"],
    "dpo": [{"prompt": letter, "chosen": "a", "rejected": "b"} for letter in "abcd"],
}


def trained(algorithm: str, model_folder: Path, tmp_path: Path, capsys) -> tuple[RunFolder, str]:
    rows = "".join(json.dumps(row) + "\n" for row in SHOWN[algorithm])
    (tmp_path / "rows.jsonl").write_text(rows)
    config = solo_config(
        model_folder, algorithm=algorithm, trainer={"steps": 2}, evaluation={"tasks": 0},
        rollout={"groups": 4, "data": str(tmp_path / "rows.jsonl")},
    )  # fmt: skip
    if algorithm == "dpo":
        for policy in config["policies"].values():
            policy["reference"] = "initial"
    path = write(tmp_path / "team.yaml", config)
    status, out, error = rolecall("train", path, "--output", tmp_path / "run", capsys=capsys)
    assert status == 0, error
    return RunFolder(tmp_path / "run"), out


@pytest.mark.parametrize("algorithm", SHOWN)
def test_a_line_shows_loss_and_tokens_and_no_score(algorithm, model_folder, tmp_path, capsys):
    folder, out = trained(algorithm, model_folder, tmp_path, capsys)
    lines = [line for line in out.splitlines() if line.startswith("step=")]
    assert len(lines) == 2
    for line in lines:
        names = [pair.partition("=")[0] for pair in line.split()]
        ranked = ["solver.pair_accuracy"] if algorithm == "dpo" else []
        assert names == [
            "step", "solver.loss", *ranked, "solver.trained_tokens", "solver.grad_norm",
            "tokens_per_s", "left",
        ]  # fmt: skip
    records = folder.read_metrics()
    assert not {key for r in records for key in r if key == "score" or key.endswith("/reward")}
    assert not {key for r in records for key in r if key.endswith(("/truncated", "/invalid"))}
    assert "pace/sampled_tokens_per_s" not in records[-1]
    # Two letters and the end of a turn in each row; of a pair, one letter and the end twice.
    tokens = {"sft": 4 * 3, "dpo": 4 * 2 * 2}[algorithm]
    assert [r["agent/solver/trained_tokens"] for r in records] == [tokens, tokens]
    summary = json.loads(folder.summary.read_text())["agents"]["solver"]
    assert summary["loss"] == records[-1]["agent/solver/loss"]
    assert ("pair_accuracy" in summary) == (algorithm == "dpo")
    titles = [title for title, _, _ in panels(records)]
    assert "Loss" in titles
    assert ("Preferences" in titles) == (algorithm == "dpo")
