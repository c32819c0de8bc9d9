"""Requests under way end before weights are replaced, and later ones wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from rolecall.cluster.replica import Gate

pytestmark = pytest.mark.alone


def test_an_update_waits_for_those_inside_and_keeps_others_out():
    said = []

    async def request(gate: Gate, name: str, policy: str, ends: asyncio.Event) -> None:
        async with gate.request(policy):
            said.append(f"{name} in")
            await ends.wait()
        said.append(f"{name} out")

    async def update(gate: Gate, name: str) -> None:
        async with gate.update("a"):
            said.append(f"{name} begins")
            await asyncio.sleep(0.01)
            said.append(f"{name} ends")

    async def main() -> None:
        gate, ends = Gate(), SimpleNamespace(first=asyncio.Event(), later=asyncio.Event())
        ends.later.set()
        running = [asyncio.create_task(request(gate, "first", "a", ends.first))]
        await asyncio.sleep(0)
        running += [asyncio.create_task(update(gate, name)) for name in ("one", "two")]
        await asyncio.sleep(0)
        running.append(asyncio.create_task(request(gate, "late", "a", ends.later)))
        running.append(asyncio.create_task(request(gate, "other", "b", ends.later)))
        await asyncio.sleep(0.01)
        assert said == ["first in", "other in", "other out"]
        ends.first.set()
        await asyncio.wait_for(asyncio.gather(*running), 5)

    asyncio.run(main())
    updates = [word for word in said if word.startswith(("one", "two"))]
    assert updates == ["one begins", "one ends", "two begins", "two ends"]
    assert said.index("first out") < said.index("one begins")
    assert "late in" in said
    between = {said.index("one begins") + 1, said.index("two begins") + 1}
    assert said.index("late in") not in between


def test_an_update_that_fails_lets_requests_in_again():
    async def main() -> str:
        gate = Gate()
        try:
            async with gate.update("a"):
                raise OSError("no such weights")
        except OSError as error:
            async with gate.request("a"):
                return str(error)
        return ""

    assert asyncio.run(asyncio.wait_for(main(), 5)) == "no such weights"
