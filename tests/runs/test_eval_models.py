"""`rolecall eval MODEL --recipe NAME`: a model plays a team, without a run."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import make_model
from tests.toy import command, relay_config, write


@pytest.fixture
def team(tmp_path) -> Path:
    """A team whose own models are nowhere."""
    return write(tmp_path / "team.yaml", relay_config(Path("/no/such/model")))


def found_by(capsys, *arguments: object) -> dict:
    status = command("eval", *arguments, "--json")
    captured = capsys.readouterr()
    assert status == 0, captured.err
    found = json.loads(captured.out)
    return {name: value for name, value in found.items() if not name.startswith("time/")}


def test_a_model_plays_every_policy(team, model_folder, tmp_path, capsys):
    own = write(tmp_path / "own.yaml", relay_config(model_folder))
    wanted = found_by(capsys, own)
    assert found_by(capsys, model_folder, "--recipe", team) == wanted
    each = ["--model", f"a={model_folder}", "--model", f"b={model_folder}"]
    assert found_by(capsys, team, *each) == wanted


def test_a_model_of_one_policy_comes_before_that_of_all(team, model_folder, tmp_path, capsys):
    other = make_model(tmp_path / "other", "qwen3", seed=1)
    mixed = found_by(capsys, model_folder, "--recipe", team, "--model", f"b={other}")
    assert mixed != found_by(capsys, model_folder, "--recipe", team)
    config = relay_config(model_folder)
    config["policies"]["b"]["base"] = str(other)
    assert mixed == found_by(capsys, write(tmp_path / "mixed.yaml", config))


def test_what_was_said_is_kept_where_a_person_says(team, model_folder, tmp_path, capsys):
    place = tmp_path / "there/kept"
    found = found_by(capsys, model_folder, "--recipe", team, "--output", place)
    record = json.loads((place / "evaluation-000000.json").read_text())
    assert record["avg@2"] == found["avg@2"]
    assert record["source"] == str(model_folder)
    assert len(pq.read_table(place / "evaluation-000000.parquet")) == 12
    assert not list(place.glob("unfinished-*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["MODEL"], "is a model and no run; name the team it plays: --recipe NAME"),
        (["MODEL", "--recipe", "TEAM", "--model", "c=x"], "there is no policy 'c'"),
        (["MODEL", "--recipe", "TEAM", "--model", "b"], "write POLICY=MODEL"),
        (["MODEL", "--recipe", "nowhere"], "there is no recipe 'nowhere'"),
        (["/no/such/model", "--recipe", "TEAM"], "policies.a.base"),
        (["MODEL", "--recipe", "TEAM", "--output", "TEAM"], "--output"),
    ],
)
def test_wrong_arguments_are_one_line(team, model_folder, capsys, arguments, said):
    places = {"MODEL": str(model_folder), "TEAM": str(team)}
    assert command("eval", *(places.get(one, one) for one in arguments)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == (2 if said == "policies.a.base" else 1)  # both policies' bases
    assert said in lines[0]
