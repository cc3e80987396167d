"""The page on the coordinator's real second port, where it has to be logged in to."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.page.watching import Watcher
from tests.server.tiny import tiny_run
from tests.web.showing import EVERYWHERE, TOKEN, showing


def test_a_browser_gets_in_with_the_token_and_stays_in(watch: Watcher, tmp_path: Path) -> None:
    with showing(tiny_run(tmp_path / "run"), host=EVERYWHERE, token=TOKEN) as shown:
        page = watch.open(f"http://127.0.0.1:{shown.port}/", wait="")
        page.wait_for_url("**/login")
        page.get_by_label("Token").fill("not-the-token-at-all")
        page.get_by_role("button", name="Look at the run").click()
        expect(page.locator("#refused")).to_be_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("Gathering clients")
        expect(page.locator("#connection")).to_have_text("Live")
        assert page.evaluate("document.cookie") == "", "scripts cannot read the way in"
        page.reload()
        expect(page.locator("#connection")).to_have_text("Live")
        watch.leave()


def test_a_run_that_is_not_there_yet_is_said_to_be_prepared(watch: Watcher) -> None:
    with showing(unready="preparing: embedding images") as shown:
        page = watch.open(f"http://127.0.0.1:{shown.port}/", wait="Not serving")
        expect(page.locator("#state")).to_have_text("Preparing")
        expect(page.locator("#strip")).to_contain_text("embedding images")
        watch.leave()
