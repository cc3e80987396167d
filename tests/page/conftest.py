from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def _stand_in() -> Iterator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def serve(_stand_in: StandIn) -> Serve:
    """Shows made-up runs, one after another."""
    return _stand_in.show


@pytest.fixture(scope="module")
def _watcher(browser: Browser) -> Iterator[Watcher]:
    watcher = Watcher(browser)
    yield watcher
    watcher.close()


@pytest.fixture
def watch(_watcher: Watcher) -> Iterator[Watcher]:
    """Looks at pages; afterwards none may have complained, or asked another origin for anything."""
    _watcher.forget()
    yield _watcher
    _watcher.leave()
    assert _watcher.complaints == []
    assert _watcher.asked_elsewhere == []
