"""What a config refers to is written to disk as it was written, and read again."""

from __future__ import annotations

import json

import pytest
import yaml

from rolecall.config.load import load
from rolecall.config.references import written_keys
from rolecall.core.errors import ConfigError
from rolecall.runs.stage_list import read, write_stages
from rolecall.storage.config_changes import changes_between, resolve_config
from rolecall.storage.run_folder import RunFolder

FILE = r"""
extends: math
trainer: {steps: 4, save_every: "${trainer.steps}"}
team:
  solver: {system: 'Write \${x} and \\\${y}: ${oc.env:STYLE}'}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("STYLE", "secret-style-1234")
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return path


def started(path, config) -> RunFolder:
    folder = RunFolder(path)
    folder.start(config)
    folder.release()
    return folder


def test_the_run_folder_holds_references_and_no_values_of_the_environment(file, tmp_path):
    config = load(file)
    assert config.team["solver"].system == r"Write ${x} and \${y}: secret-style-1234"
    folder = started(tmp_path / "run", config)
    text = folder.config.read_text()
    assert "secret-style-1234" not in text
    assert "${oc.env:STYLE}" in text
    assert yaml.safe_load(text)["trainer"]["save_every"] == "${trainer.steps}"
    assert resolve_config(load(folder.config)) == resolve_config(config)
    assert folder.changes(config) == {}


def test_a_run_goes_on_with_a_new_key_and_keeps_neither(file, tmp_path, monkeypatch):
    folder = started(tmp_path / "run", load(file))
    monkeypatch.setenv("STYLE", "secret-style-5678")
    started(folder.path, load(file, ["trainer.steps=5", "trainer.save_every=4"]))
    [chapter] = map(json.loads, folder.chapters.read_text().splitlines())
    assert chapter["changes"] == {"trainer.steps": [4, 5]}
    changes = changes_between(load(folder.config), load(file, ["team.solver.system=plain"]))
    assert changes["team.solver.system"][1] == "plain"
    assert "secret" not in json.dumps(changes)


def test_a_value_that_was_changed_after_loading_is_written_as_it_is(file):
    config = load(file)
    config.team["solver"].system = "another ${z}"
    assert written_keys(config)["team"]["solver"]["system"] == r"another \${z}"


@pytest.mark.parametrize("value", ["${x}", r"a\${x}", r"\\${oc.env:HOME}", "$x {y} \\"])
def test_a_value_that_looks_like_a_reference_is_read_as_it_is(value, file, tmp_path, monkeypatch):
    monkeypatch.setenv("STYLE", value)
    config = load(file)
    config.team["verifier"].system = value
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(written_keys(config)))
    assert resolve_config(load(tmp_path / "again.yaml")) == resolve_config(config)


def test_stages_are_declared_with_their_references(tmp_path, monkeypatch):
    monkeypatch.setenv("STYLE", "secret-style-1234")
    file = tmp_path / "staged.yaml"
    file.write_text(
        "extends: math\nteam: {solver: {system: 'x ${oc.env:STYLE}'}}\nstages:\n"
        "- {name: one, trainer: {steps: 1}}\n"
        "- {name: two, trainer: {steps: 2, save_every: '${trainer.steps}'}}\n"
    )
    text = write_stages(read(file, []))
    assert "secret-style-1234" not in text
    (tmp_path / "stages.yaml").write_text(text)
    again = read(tmp_path / "stages.yaml", [])
    assert [resolve_config(part.config) for part in again] == [
        resolve_config(part.config) for part in read(file, [])
    ]
    assert write_stages(again) == text


@pytest.mark.parametrize(
    ("system", "problem"),
    [
        ("Solve ${x}^2$.", "Interpolation key 'x' not found: the config has no such key"),
        ("Say ${answer", "the text after ${ is no reference"),
        ("Say ${}.", "the text after ${ is no reference"),
        ("Say ${to:whom}.", "Unsupported interpolation type to"),
        ("${oc.env:NO_SUCH_STYLE}", "the environment variable NO_SUCH_STYLE is not set; set it"),
    ],
)
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_broken_reference_is_told_with_file_line_key_and_a_way_to_write_it(
    tmp_path, system, problem, quote
):
    path = tmp_path / "mine.yaml"
    text = "extends: math\nteam:\n  solver:\n    system: "
    path.write_text(f"{text}{quote}{system}{quote}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    [line] = caught.value.problems
    assert line.startswith(f"{path}:4: team.solver.system: {problem}")
    assert r"write \${ (inside double quotes \\${)" in line
    escaped = system.replace("${", r"\\${" if quote == '"' else r"\${")
    path.write_text(f"{text}{quote}{escaped}{quote}\n")
    assert load(path).team["solver"].system == system


def test_all_broken_references_are_told_at_once_where_they_stand(tmp_path):
    base, path = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("extends: math\nteam:\n  solver: {system: '${x}'}\n")
    path.write_text("extends: base.yaml\n\npolicies: {small: {base: 'tiny:${y}'}}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, ["trainer.seed=${z}"])
    starts = [line.partition(": Interp")[0] for line in caught.value.problems]
    assert sorted(starts) == sorted(
        [
            f"{base}:3: team.solver.system",
            f"{path}:3: policies.small.base",
            "command line: trainer.seed",
        ]
    )


def test_a_broken_reference_of_an_extended_file_is_told_of_that_file(tmp_path):
    base, path = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("extends: math\nteam:\n  solver: {system: 'a ${x'}\n")
    path.write_text("extends: base.yaml\n")
    with pytest.raises(ConfigError, match=r"base\.yaml:3: team\.solver\.system: "):
        load(path)
