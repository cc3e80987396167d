"""Opens the page in a browser and notes what it complains of and whom it asks; asserts nothing."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

DESKTOP = (1440, 900)
PHONE = (390, 844)

BROWSER_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-default-apps", "--no-default-browser-check", "--disable-breakpad",
]  # fmt: skip

PATIENCE_MS = 30_000

expect.set_options(timeout=PATIENCE_MS)


class Watcher:
    """Opens pages, each in a profile of its own."""

    def __init__(self, browser: Browser) -> None:
        self.complaints: list[str] = []
        """Errors and warnings on consoles, and uncaught exceptions."""
        self.asked_elsewhere: list[str] = []
        """Requests that left the page's origin."""
        self.refusals_expected = False
        """Whether the coordinator is made to refuse connections, of which a browser complains."""
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def open(
        self, url: str, size: tuple[int, int] = DESKTOP, theme: str = "light", *, wait: str = "Live"
    ) -> Page:
        """A page that shows the run.

        Args:
            url: Where.
            size: Of the window, in CSS pixels.
            theme: What the machine prefers, "light" or "dark".
            wait: What the connection has to say first; empty to wait for nothing.
        """
        context = self._browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        origin = urlsplit(url).netloc
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._check(request.url, origin))
        page.goto(url)
        if wait:
            expect(page.locator("#connection")).to_have_text(wait)
        return page

    def close(self) -> None:
        """Close every page."""
        contexts, self._contexts = self._contexts, []
        for context in contexts:
            with suppress(Exception):  # the browser may be gone, of which its own test tells
                context.close()

    def _note(self, message: ConsoleMessage) -> None:
        refused = "Failed to load resource" in message.text and self.refusals_expected
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(message.text)

    def _check(self, url: str, origin: str) -> None:
        if urlsplit(url).netloc != origin:
            self.asked_elsewhere.append(url)
