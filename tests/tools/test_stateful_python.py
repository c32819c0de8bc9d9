"""A Python whose variables last over an episode: private, limited, and begun anew when it dies."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.tools.python import Python
from rolecall.tools.use import OpenTools, ToolUse
from tests.sandbox.places import working_sandbox

pytestmark = pytest.mark.slow


def make(**options) -> Python:
    made = Python(stateful=True, **options)
    made._sandbox = working_sandbox(concurrency=2)
    return made


def calls(*codes, seed=7, **options):
    kit = make(**options)

    async def main():
        async with kit.open(World(), seed=seed) as [python]:
            results = [await python.call(code=code) for code in codes]
        await kit.sandbox.close()
        return results

    return asyncio.run(main())


def test_variables_last_from_call_to_call_and_the_last_value_is_shown():
    assert calls("x = 5", "print(x)\nx + 1", "1/0", "x * 2")[:2] == ["[no output]", "5\n6"]
    raised, still = calls("x = 5", "1/0", "x * 2")[1:]
    assert raised.endswith("ZeroDivisionError: division by zero")
    assert still == "10"


def test_one_that_is_too_slow_is_reported_and_begun_anew_with_its_files():
    said = calls(
        "x = 1; _ = open('kept.txt', 'w').write('here')", "while True: pass", "x",
        "open('kept.txt').read()", wall_s=1.0,
    )  # fmt: skip
    assert said[1] == "[stopped after 1 s]\n[your variables are gone; files have stayed]"
    assert said[2].endswith("NameError: name 'x' is not defined")
    assert said[3] == "'here'"


def test_each_call_has_the_whole_time():
    wait = "import time; time.sleep(0.6)"
    assert calls(wait, wait, wait, "1 + 1", wall_s=1.0)[-1] == "2"


def test_one_that_ends_itself_or_takes_too_much_memory_is_told():
    said = calls("import os; os._exit(3)", "b = bytearray(10**9)", "'goes on'", memory_mb=256)
    assert said[0].startswith("[exit status 3]")
    assert "variables are gone" in said[1] or said[1].endswith("MemoryError")
    assert said[2] == "'goes on'"


def test_random_numbers_are_those_of_the_episodes_seed():
    code = "import random; random.random()"
    assert calls(code) == calls(code)
    assert calls(code) != calls(code, seed=8)


def test_calls_of_one_answer_take_turns():
    kit = make()

    async def main():
        async with kit.open(World(), seed=0) as [python]:
            codes = ("y = 1", "y += 1; y", "y * 10")
            results = await asyncio.gather(*(python.call(code=code) for code in codes))
        await kit.sandbox.close()
        return results

    assert asyncio.run(main()) == ["[no output]", "2", "20"]


@pytest.mark.parametrize(("stateful", "shared"), [(True, False), (False, True)])
def test_agents_share_no_variables_and_share_files_of_fresh_processes(stateful, shared):
    kit = Python(stateful=stateful)
    kit._sandbox = working_sandbox(concurrency=2)

    async def main():
        async with AsyncExitStack() as stack:
            opened = OpenTools(World(), 3, stack)
            ann, ben = ToolUse((kit,)), ToolUse((kit,))
            [hers] = await opened.offered_tools(ann)
            [his] = await opened.offered_tools(ben)
            await hers.call(code="_ = open('note', 'w').write('hers'); x = 1")
            said = await his.call(code="import os; print(os.path.exists('note'))")
            again = await opened.offered_tools(ann)
        await kit.sandbox.close()
        return said, again == [hers]

    assert asyncio.run(main()) == (str(shared), True)


def test_a_server_keeps_no_variables():
    with pytest.raises(ValueError, match="stateful has no effect with url"):
        Python(url="http://localhost:1", stateful=True)
