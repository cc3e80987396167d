from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.conftest import launch, world
from tests.page.stand_in import Serve, StandIn
from tests.page.watching import BROWSER_FLAGS, Watcher
from tests.tools import require_tool

__all__ = ["browser", "launch", "serve", "watch", "world"]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One headless Chromium; closed with these tests, as it keeps an event loop of its own in this thread."""
    program = require_tool("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=BROWSER_FLAGS)
        yield started
        started.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Shows made-up runs until the test is over, and the pages that look at them are closed."""
    with ExitStack() as stack:
        yield lambda status=None: stack.enter_context(StandIn(status))


@pytest.fixture
def watch(serve: Serve, browser: Browser) -> Iterator[Watcher]:
    """Opens pages; afterwards none may have complained, or asked another origin for anything."""
    watcher = Watcher(browser)
    yield watcher
    watcher.close()
    assert watcher.complaints == []
    assert watcher.asked_elsewhere == []
