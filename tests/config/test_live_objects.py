"""Functions, classes and paths of a program stand in configs; errors and closed teams say so."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import rolecall
from rolecall.config.live_objects import name_objects
from rolecall.config.load import load
from rolecall.config.registry import import_object
from rolecall.core.errors import ConfigError
from tests.toy import Letters, relay, relay_config, write


async def odd(episode, world):
    return {"team": float(sum(episode.turns[0].tokens) % 2)}


HERE = Path(__file__).resolve()


def test_functions_and_classes_are_named_by_their_files(model_folder, tmp_path):
    toy = (Path(__file__).parents[1] / "toy.py").resolve()
    assert name_objects({"rewards": {odd: 1.0}, "of": [Letters], "base": Path("x")}) == {
        "rewards": {f"{HERE}:odd": 1.0}, "of": [f"{toy}:Letters"], "base": "x",
    }  # fmt: skip
    assert name_objects(relay) == f"{toy}:relay"  # a workflow
    config = relay_config(model_folder, rewards={odd: 1.0}, workflow=relay, trainer={"steps": 1})
    rolecall.train(config, evaluation={"tasks": 0}, output=tmp_path / "one")
    config["rewards"] = {"correct": 1.0}
    rolecall.train(
        config, evaluation={"tasks": 0}, rewards={odd: {"weight": 2.0}}, output=tmp_path / "two"
    )
    stored = load(tmp_path / "two/config.yaml").rewards
    assert {name: getattr(value, "weight", value) for name, value in stored.items()} == {
        "correct": 1.0, f"{HERE}:odd": 2.0,
    }  # fmt: skip


def test_what_no_file_has_is_kept_in_memory_under_a_name_of_its_own():
    async def inner(episode, world):
        return {}

    first, second = (lambda: 1), eval("lambda: 2")
    names = name_objects({"rewards": {inner: 1.0}, "of": [first, second, first]})
    assert names == {
        "rewards": {"in-memory:inner": 1.0},
        "of": ["in-memory:lambda", "in-memory:lambda-2", "in-memory:lambda"],
    }
    assert import_object("in-memory:inner", key="rewards") is inner
    assert import_object("in-memory:lambda-2", key="rewards") is second
    with pytest.raises(ConfigError, match=r"rewards: in-memory:gone is an object of the Python"):
        import_object("in-memory:gone", key="rewards")


def test_an_environment_that_was_made_stands_for_its_class():
    made = Letters()
    assert name_objects({"environment": made}) == {"environment": "in-memory:Letters"}
    assert import_object("in-memory:Letters", key="environment")() is made


def test_an_object_that_is_no_part_of_a_run_is_refused_with_its_line():
    class Rows:
        pass

    with pytest.raises(ConfigError, match=r"Rows \(.*test_live_objects.py:\d+\) cannot stand in a"):
        name_objects({"environment": {"name": "math", "train": Rows()}})


@pytest.mark.evidence
def test_a_program_names_its_own_functions_and_is_not_run_twice(model_folder, tmp_path):
    file = tmp_path / "program.py"
    config = relay_config(model_folder, trainer={"steps": 1}, evaluation={"tasks": 0})
    file.write_text(
        "import rolecall\nprint('begun')\n"
        "async def mine(episode, world):\n"
        "    return {'team': float(sum(episode.turns[0].tokens) % 2)}\n"
        f"config = {config!r}\n"
        f"rolecall.train(config | {{'rewards': {{mine: 1.0}}}}, output={str(tmp_path / 'run')!r})\n"
    )
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("begun") == 1


@pytest.mark.parametrize("override", ["rewards.my.file.py:name=2", "rewards.a/b.c.py:x.weight=2"])
def test_a_reward_of_a_file_is_a_key_on_a_command_line(override, model_folder, tmp_path):
    path = write(tmp_path / "team.yaml", relay_config(model_folder))
    name = override.removeprefix("rewards.").partition("=")[0].removesuffix(".weight")
    found = load(path, [override]).rewards[name]
    assert getattr(found, "weight", found) == 2.0


def test_problems_of_a_mapping_name_no_file(model_folder):
    config = relay_config(model_folder, trainer={"stepz": 1})
    with pytest.raises(ConfigError) as raised:
        rolecall.train(config)
    [problem] = raised.value.problems
    assert problem.startswith("trainer.stepz: unknown key")


def test_a_loop_goes_on_beside_a_run_and_a_cancellation_saves(model_folder, tmp_path):
    config = relay_config(model_folder, evaluation={"tasks": 0}, trainer={"steps": 1})
    ticks = 0

    async def both() -> None:
        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        found = await rolecall.train_async(config, output=tmp_path / "run")
        assert found["steps"] == 1
        assert ticks > 3
        more = {"trainer.steps": 100_000}
        longer = asyncio.create_task(rolecall.train_async(config, more, output=tmp_path / "run"))
        while not (tmp_path / "run/episodes/step-000003.parquet").exists():
            await asyncio.sleep(0.01)
        longer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await longer
        ticking.cancel()

    asyncio.run(both())
    assert list((tmp_path / "run/checkpoints").glob("step-*"))


def test_a_team_is_used_in_an_async_with_and_says_that_it_is_closed(model_folder, tmp_path):
    config = relay_config(model_folder, evaluation={"tasks": 0}, trainer={"steps": 1})
    rolecall.train(config, output=tmp_path / "run")

    async def ask() -> None:
        async with rolecall.Team.load(tmp_path / "run") as team:
            assert (await team.ask("a")).turns
        with pytest.raises(RuntimeError, match=r"this team is closed; load it again"):
            await team.ask("a")
        with pytest.raises(RuntimeError, match=r"this team is closed; load it again"):
            team.ask_now("a")

    asyncio.run(ask())
