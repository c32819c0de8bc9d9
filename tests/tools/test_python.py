"""Code that an agent writes runs in a sandbox, and the files of one call are there for the next."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.sandbox.base import Ran, Run
from rolecall.tools.python import Python
from tests.sandbox.places import working_sandbox

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kit():
    made = Python(wall_s=5.0, memory_mb=512)
    made._sandbox = working_sandbox(concurrency=2)
    yield made
    asyncio.run(made.sandbox.close())


def use(kit: Python, *codes: str) -> list[str]:
    async def main() -> list[str]:
        async with kit.open(World(), seed=0) as [tool]:
            return [await tool.call(code=code) for code in codes]

    return asyncio.run(main())


def test_files_are_kept_from_call_to_call_and_variables_are_not(kit):
    said = use(
        kit,
        "import os\nos.makedirs('out')\nopen('out/a.txt', 'w').write('one')\nx = 1",
        "print(open('out/a.txt').read())",
        "print(x)",
        "import os\nos.remove('out/a.txt')",
        "import os\nprint([f for _, _, files in os.walk('.') for f in files])",
    )
    assert said[:2] == ["[no output]", "one"]
    assert "NameError: name 'x' is not defined" in said[2]
    assert said[2].endswith("[exit status 1]")
    assert said[3:] == ["[no output]", "['__program__.py']"]


def test_files_that_are_too_large_are_not_kept_and_that_is_said(kit):
    said = use(kit, "open('big', 'wb').write(bytes(10**8))", "import os; print(os.listdir())")
    assert said == [
        "[not kept, for their sizes, their number or their names: big]",
        "['__program__.py']",
    ]


def test_episodes_do_not_see_each_others_files(kit):
    use(kit, "open('a', 'w').write('1')")
    assert "FileNotFoundError" in use(kit, "open('a')")[0]


def test_what_a_program_dies_of_is_said(kit):
    said = use(
        kit,
        "print('before', flush=True)\nimport time; time.sleep(60)",
        "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
        "x = bytearray(10**10)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert said[0] == "before\n[stopped after 5 s]"
    assert said[1] == "out\nerr\n[exit status 3]"
    assert "MemoryError" in said[2] or "memory limit" in said[2]
    assert said[3] == "[exit status -9]"


def test_options_of_this_machine_have_no_effect_on_a_server():
    with pytest.raises(ValueError, match="that server decides"):
        Python(url="http://localhost:1", packages=False)


class Server:
    """A sandbox that leaves files of such names, as one of somebody else may."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    async def run(self, run: Run) -> Ran:
        self.given.append(sorted(run.files))
        files = {"a.txt": b"1", "__program__x/b": b"2", "\udcff": b"3", "../c": b"4"}
        return Ran("finished", 0, "ok\n", "", 0.1, files=files)

    async def close(self) -> None: ...


def test_names_that_cannot_be_placed_again_are_told_and_later_calls_go_on(monkeypatch):
    server = Server()
    kit = Python(url="http://127.0.0.1:1")
    monkeypatch.setattr(kit, "_sandbox", server)
    said = use(kit, "1", "2")
    told = "[not kept, for their sizes, their number or their names: ../c, __program__x/b, ?]"
    assert said == [f"ok\n{told}"] * 2
    assert server.given == [[], ["a.txt"]]


def test_a_program_may_make_any_names_and_later_calls_go_on(kit):
    code = (
        "import os\nos.makedirs('__program__x')\nopen('__program__x/a', 'w').close()\n"
        "open(b'\\xff' * 200, 'w').close()\nopen('b', 'w').write('2')"
    )
    said = use(kit, code, "print(open('b').read())")
    assert "[not kept" in said[0]
    assert said[1] == "2"
