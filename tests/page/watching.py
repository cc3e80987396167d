"""Looks at the page in a browser and notes what it complains of and whom it asks; asserts nothing."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

DESKTOP = (1440, 900)
PHONE = (390, 844)

BROWSER_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-default-apps", "--no-default-browser-check", "--disable-breakpad",
]  # fmt: skip

PATIENCE_MS = 30_000

expect.set_options(timeout=PATIENCE_MS)


class Watcher:
    """One page in a profile of its own, which looks at one run after another."""

    def __init__(self, browser: Browser) -> None:
        self.forget()
        self._origin = ""
        self._context = browser.new_context(reduced_motion="reduce")
        self._page = self._context.new_page()
        self._page.set_default_timeout(PATIENCE_MS)
        self._page.on("console", self._note)
        self._page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        self._page.on("request", self._check)

    def forget(self) -> None:
        """Begin to note anew."""
        self.complaints: list[str] = []
        """Errors and warnings on the console, and uncaught exceptions."""
        self.asked_elsewhere: list[str] = []
        """Requests that left the page's origin."""
        self.refusals_expected = False
        """Whether the coordinator is made to refuse connections, of which a browser complains."""

    def open(
        self, url: str, size: tuple[int, int] = DESKTOP, theme: str = "light", *, wait: str = "Live"
    ) -> Page:
        """The page, looking at a run as if for the first time.

        Args:
            url: Where.
            size: Of the window, in CSS pixels.
            theme: What the machine prefers, "light" or "dark".
            wait: What the connection has to say first; empty to wait for nothing.
        """
        self._origin = urlsplit(url).netloc
        page = self._page
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        page.goto(url)
        if wait:
            expect(page.locator("#connection")).to_have_text(wait)
        return page

    def leave(self) -> None:
        """Look at nothing."""
        self._page.goto("about:blank")

    def close(self) -> None:
        """No more."""
        self._context.close()

    def _note(self, message: ConsoleMessage) -> None:
        refused = "Failed to load resource" in message.text and self.refusals_expected
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(message.text)

    def _check(self, request: Request) -> None:
        if urlsplit(request.url).netloc not in (self._origin, ""):
            self.asked_elsewhere.append(request.url)
