"""One Chromium for the tests of a module, in the event loop of the module."""

from __future__ import annotations

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.kit import Gated, chromium, crm, launched, model
from tests.unit.server.documented import answers_are_documented as answers_are_documented
from tests.unit.server.kit import serving

# What a test waits for comes in milliseconds; a machine with other work may take longer.
expect.set_options(timeout=20_000)


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.browser)
            if chromium() is None:
                reason = "Chromium is not on this machine: `make browser`"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with launched() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def gate():
    return Gated()


@pytest_asyncio.fixture(loop_scope="module")
async def served(tmp_path, gate):
    async with serving(tmp_path, model=model(gate), services=(crm(),)) as found:
        yield found
