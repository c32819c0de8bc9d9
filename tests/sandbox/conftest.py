import asyncio

import pytest

from tests.sandbox.places import working_sandbox


@pytest.fixture(scope="session")
def sandbox():
    shared = working_sandbox(concurrency=4)
    yield shared
    asyncio.run(shared.close())
