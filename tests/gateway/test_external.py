"""Programs that are started for episodes: functions in warm workers, and commands."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from rolecall.core.errors import RunEndingError
from rolecall.gateway.programs import ProgramError, WarmWorker, run_command
from rolecall.storage.episode_io import read_parquet
from tests.support.processes import is_alive
from tests.toy import command

TASK = {"id": "t", "prompt": "2 + 2?"}


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder}/mine.py:run"


def call(function: str, *, times: int = 1, environment=None, python: str = "") -> list:
    async def main():
        worker = WarmWorker(function, python=python)
        try:
            runs = (worker.run(TASK, environment or {}) for _ in range(times))
            return await asyncio.gather(*runs)
        finally:
            await worker.close()

    return asyncio.run(main())


def test_a_function_is_called_with_the_task_in_the_environment_of_its_episode(tmp_path):
    code = "import os\nKEY = os.environ['KEY']\ndef run(task): return task['prompt'] + KEY\n"
    assert call(write(tmp_path, code), environment={"KEY": "k"}) == ["2 + 2?k"]
    code = "async def run(task): return 4\n"
    assert call(write(tmp_path, code)) == [4]


def test_modules_are_imported_once_and_calls_do_not_share_what_they_change(tmp_path):
    (tmp_path / "heavy.py").write_text("import os\nNUMBER, IMPORTER = [], os.getpid()\n")
    code = (
        "import os\nimport heavy\n"
        "def run(task):\n    heavy.NUMBER.append(1)\n"
        "    return f'{len(heavy.NUMBER)} {heavy.IMPORTER != os.getpid()}'\n"
    )
    assert call(write(tmp_path, code), times=8) == ["1 True"] * 8


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def run(task): raise KeyError('x')", "KeyError: 'x'"),
        ("import sys\ndef run(task): sys.exit(3)", "SystemExit: 3"),
        ("def run(task): return [1]", "returns a list; return a text, a dict or"),
        ("def run(task): return {'answer': {1}}", "run returns what is no JSON"),
        ("import os\ndef run(task): os._exit(0)", "ended without an answer"),
        ("import os\ndef run(task): os.kill(os.getpid(), 9)", "ended without an answer"),
        ("import os\nKEY = os.environ['NOT_THERE']\ndef run(task): pass", "KeyError: 'NOT_THERE'"),
    ],
)
def test_what_a_program_does_wrong_is_its_error(tmp_path, code, error):
    with pytest.raises(ProgramError, match=error):
        call(write(tmp_path, code))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def other(task): pass", "has no function 'run'"),
        ("def run(task):", "cannot be read"),
        ("import no_such_module\ndef run(task): pass", "No module named 'no_such_module'"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_run_with_one_line(tmp_path, code, error):
    with pytest.raises(RunEndingError, match=f"workflow.function: .*{error}"):
        call(write(tmp_path, code))


def test_a_python_that_is_not_there_ends_the_run_with_one_line(tmp_path):
    function = write(tmp_path, "def run(task): pass")
    with pytest.raises(RunEndingError, match=r"workflow\.python: 'no-python' cannot be run"):
        call(function, python="no-python")


def test_a_call_that_is_cancelled_is_killed_with_all_that_it_started(tmp_path):
    code = (
        "import os, subprocess, sys, time\n"
        "def run(task):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"    open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}} ')\n"
        "    time.sleep(60)\n"
    )

    async def main():
        worker = WarmWorker(write(tmp_path, code))
        playing = asyncio.ensure_future(worker.run(TASK, {}))
        while not (tmp_path / "pids").is_file() or len(pids()) < 2:
            await asyncio.sleep(0.05)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        await worker.close()

    def pids() -> list[int]:
        return [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    asyncio.run(main())
    until = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_last_line_of_a_command_is_its_answer():
    code = (
        "import json, os; task = json.load(open(os.environ['ROLECALL_TASK']));"
        "print('working'); print(task['prompt'], os.environ['KEY'])"
    )
    run = run_command([sys.executable, "-c", code], TASK, {"KEY": "k"})
    assert asyncio.run(run) == "2 + 2? k"
    code = "import sys; print('so it is', file=sys.stderr); sys.exit(3)"
    failing = run_command([sys.executable, "-c", code], TASK, {})
    with pytest.raises(ProgramError, match="status 3: so it is"):
        asyncio.run(failing)


PROGRAM = """
from openai import OpenAI

client = OpenAI()


def ask(agent, messages):
    reply = client.chat.completions.create(model=agent, messages=messages)
    return reply.choices[0].message.content


def run(task):
    messages = [{"role": "user", "content": task["prompt"]}]
    solution = ask("solver", messages)
    shown = f"{task['prompt']}\\n\\n[solver]\\n{solution}"
    verdict = ask("verifier", [{"role": "user", "content": shown}])
    messages += [{"role": "assistant", "content": solution}, {"role": "user", "content": verdict}]
    return ask("solver", messages)
"""


def running(folder: Path) -> list[str]:
    """Return the command lines of processes that name the folder."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in commands if str(folder) in line]


def sockets() -> set[str]:
    """Return the sockets that this process has open."""
    files = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            files.add(os.readlink(file))
    return {file for file in files if file.startswith("socket:")}


def config(folder: Path, workflow: dict, **sections) -> Path:
    file = folder / "mine.yaml"
    changes = {
        "extends": "math",
        "workflow": {"name": "external"} | workflow,
        "rollout": {"groups": 2, "group_size": 4},
        "trainer": {"steps": 2},
        "evaluation": {"tasks": 0},
    } | sections
    file.write_text(yaml.safe_dump(changes))
    return file


@pytest.mark.slow
def test_a_program_with_an_unmodified_client_trains_a_team(tmp_path, capsys):
    function = write(tmp_path, PROGRAM)
    run, before = tmp_path / "run", sockets()
    assert command("train", config(tmp_path, {"function": function}), "--output", run) == 0
    assert running(tmp_path) == []  # the trainer's event loop is closed before the run is
    assert sockets() - before == set()
    pairs = []
    for step in (1, 2):
        for episode in read_parquet(run / f"episodes/step-{step:06d}.parquet"):
            assert episode.error is None
            assert [turn.agent for turn in episode.turns] == ["solver", "verifier", "solver"]
            by_id = {turn.id: turn for turn in episode.turns}
            last = episode.turns[-1]
            pairs += [(by_id[parent], last) for parent in last.parents]
    assert len(pairs) == 16
    for first, second in pairs:
        said = [*first.prompt, *first.tokens]
        assert list(second.prompt[: len(said)]) == said
    capsys.readouterr()
    assert command("blame", run, "--draws", 3, "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert [turn["agent"] for turn in result["turns"]] == ["solver", "verifier", "solver"]
    assert (result["num_replays"], result["num_failed"]) == (27, 0)


@pytest.mark.slow
def test_a_command_that_asks_nobody_is_told_what_to_do(tmp_path, capsys):
    file = config(tmp_path, {"command": [sys.executable, "-c", "print(4)"]})
    assert command("train", file, "--output", tmp_path / "run") != 0
    assert "the program asked no agent for anything" in capsys.readouterr().err


SCORED = """
import json
import os
import urllib.request

from openai import OpenAI


def run(task):
    reply = OpenAI().chat.completions.create(
        model="solver", messages=[{"role": "user", "content": task["prompt"]}]
    )
    said = reply.choices[0].message.content
    if task["info"]["way"] == "returns":
        return {"answer": said, "rewards": {"solver": len(said) / 100, "verifier": 0.5}}
    body = json.dumps({"reward": len(said) / 100}).encode()
    request = urllib.request.Request(
        os.environ["ROLECALL_ROLLOUT_URL"] + "/reward", body, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()
    return said
"""


@pytest.mark.slow
def test_a_program_scores_its_own_tasks(tmp_path):
    rows = [{"id": way, "prompt": "2 + 2?", "way": way} for way in ("returns", "posts")]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    file = config(
        tmp_path,
        {"function": write(tmp_path, SCORED)},
        environment={"name": "external"} | files,
        trainer={"steps": 1},
    )
    assert command("train", file, "--output", tmp_path / "run") == 0
    episodes = read_parquet(tmp_path / "run/episodes/step-000001.parquet")
    assert len(episodes) == 8
    for episode in episodes:
        reward = len(episode.answer) / 100
        own = {"solver": reward, "verifier": 0.5}
        assert episode.rewards == (own if episode.task.id == "returns" else {"team": reward})


@pytest.mark.parametrize("workflow", [{}, {"function": "a.py:run", "command": ["b"]}])
def test_one_way_to_start_a_program_is_named(tmp_path, capsys, workflow):
    assert command("check", config(tmp_path, workflow)) == 2
    assert "write one of `function: path/to/file.py:name`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("algorithm=counterfactual", "algorithm: counterfactual replays episodes"),
        ("team.solver.memory=true", "team.solver.memory: the program keeps the conversation"),
        ("team.solver.tools={use: [calculator]}", "team.solver.tools: the program calls its tools"),
    ],
)
def test_what_a_program_outside_does_itself_is_refused(tmp_path, capsys, override, told):
    assert command("check", config(tmp_path, {"function": "a.py:run"}), override) == 2
    assert told in capsys.readouterr().err


def test_a_worker_starts_episodes_soon(tmp_path):
    """Far below the import of a client, which takes a second of processor time."""
    function = write(
        tmp_path, PROGRAM.replace("def run(task):", "def run(task):\n    return 'x'\n")
    )
    environment = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}

    async def main():
        worker = WarmWorker(function)
        await worker.start()
        before = os.times()
        for _ in range(10):
            assert await worker.run(TASK, environment) == "x"
        after = os.times()
        await worker.close()
        return after.children_user - before.children_user

    assert asyncio.run(main()) < 10.0
