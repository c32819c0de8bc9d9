"""`rolecall check` refuses what a run would fail on, with the key and what to write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.test_cli import refused, rolecall
from tests.toy import relay_config, write

PARTS = Path(__file__).with_name("user_parts.py")
CASES = {
    "a model that the package has not": (
        {"policies.a.base": "tiny:maths"},
        "policies.a.base: there is no embedded model tiny:maths (there are: tiny:",
    ),
    "tools that a template does not show": (
        {"team.left.tools": "{use: [calculator]}"},
        "team.left.tools.format: native calls cannot be used with",
    ),
    "a folder that is not there": (
        {"policies.b.base": "/no/such/folder"},
        "policies.b.base: base '/no/such/folder': there is no such model folder; write",
    ),
    "a folder without a model": (
        {"policies.b.base": str(PARTS.parent)},
        "has no config.json; write the folder of a model",
    ),
    "a reference that is not there": (
        {"algorithm": "dpo", "policies.a.reference": "./none", "policies.b.reference": "initial"},
        "policies.a.reference: base './none': there is no such model folder",
    ),
    "a critic that is not there": (
        {"algorithm": "mappo", "critics.team.base": "tiny:none"},
        "critics.team.base: there is no embedded model tiny:none",
    ),
    "targets that the base has not": (
        {"policies.a.adapter": "{rank: 2, targets: [query]}"},
        "policies.a.adapter.targets: Target modules",
    ),
    "the head as a target": (
        {"policies.a.adapter": "{rank: 2, targets: [lm_head]}"},
        "write all-linear, or names of layers: down_proj, gate_proj, k_proj, o_proj, q_proj",
    ),
    "a reward without async": (
        {"rewards": f"{{'{PARTS}:sync_reward': 1}}"},
        "user_parts.py:6) is not an async function; write `async def`",
    ),
    "a class of rewards without async": (
        {"rewards": f"{{'{PARTS}:SyncReward': 1}}"},
        "its __call__ (",
    ),
    "no environment": (
        {"environment": f"{PARTS}:NoEnvironment"},
        "has no tasks(split), so it is no environment; write a class",
    ),
    "a parser with async": (
        {"team.left.parser": f"{PARTS}:async_parser"},
        "team.left.parser: ",
    ),
    "a workflow without async": (
        {"workflow": f"{PARTS}:not_async"},
        "workflow.name: workflow 'not_async' must be an async function; write `async def`",
    ),
    "a workflow that returns nothing": (
        {"workflow": f"{PARTS}:silent"},
        "returns nothing, so no episode has an answer; write `return turn` with the turn",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_run_is_refused_in_one_line(name, model_folder, tmp_path, capsys):
    changes, told = CASES[name]
    path = write(tmp_path / "team.yaml", relay_config(model_folder, evaluation={"tasks": 0}))
    overrides = [f"{key}={value}" for key, value in changes.items()]
    assert told in refused("check", path, *overrides, capsys=capsys)


def test_an_adapter_is_refused_as_a_base(model_folder, tmp_path, capsys):
    path = write(tmp_path / "team.yaml", relay_config(model_folder, evaluation={"tasks": 0}))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    error = refused("check", path, f"policies.a.base={adapter}", capsys=capsys)
    assert "policies.a.base: " in error
    assert "holds an adapter without its base; write the folder of a model" in error


def test_what_can_run_is_not(model_folder, tmp_path, capsys):
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    adapter = "policies.a.adapter={rank: 2, targets: [q_proj, v_proj]}"
    status, _, error = rolecall("check", path, f"workflow={PARTS}:fine", adapter, capsys=capsys)
    assert status == 0, error


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("@workflow\ndef talk(team, task, world): ...", "must be an async function"),
        ("1 / 0", "cannot be imported: division by zero"),
        ("import math\nmath.nothing", "module 'math' has no attribute 'nothing'"),
    ],
)
def test_an_error_of_a_users_file_is_one_line_with_its_place(
    code, told, model_folder, tmp_path, capsys
):
    file = tmp_path / "mine.py"
    file.write_text(f"from rolecall.workflows.base import workflow\n{code}\n")
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    error = refused("check", path, f"workflow={file}:talk", capsys=capsys)
    assert error.startswith("rolecall: command line: workflow.name: ")
    assert told in error
    assert "mine.py:" in error


def test_a_template_that_is_missing_is_refused_by_check(model_folder, tmp_path, capsys):
    shutil.copytree(model_folder, tmp_path / "bare")
    for file in (tmp_path / "bare").glob("chat_template*"):
        file.unlink()
    path = write(tmp_path / "team.yaml", relay_config(tmp_path / "bare"))
    status, _, error = rolecall("check", path, capsys=capsys)
    assert status == 2
    for line, policy in zip(error.splitlines(), "ab", strict=True):
        assert f"policies.{policy}.base: base" in line
        assert "has no chat template" in line


def test_bases_that_are_not_on_this_machine_are_named_and_those_of_the_cache_checked(
    hub_bases, tmp_path, monkeypatch, capsys
):
    base = "policies.solver.base=Qwen/Qwen3-4B"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    status, out, error = rolecall("check", "math", base, capsys=capsys)
    assert (status, error) == (0, "")
    assert "chat templates were not checked: Qwen/Qwen3-4B" in " ".join(out.split())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub_bases))
    status, out, error = rolecall("check", "math", base, capsys=capsys)
    assert (status, error) == (0, "")
    assert "were not checked" not in out
