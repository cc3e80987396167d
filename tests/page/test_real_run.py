"""The page over a real coordinator with a real client, as an operator has it."""

from __future__ import annotations

import re
import signal

import pytest
from playwright.sync_api import expect

from fkd_common.errors import ExitCode
from tests.e2e.conftest import World
from tests.e2e.programs import Launcher, address_of
from tests.page.watching import Watcher

pytestmark = pytest.mark.e2e

ROUNDS = 400


def test_the_page_follows_a_run_to_a_stop(world: World, launch: Launcher, watch: Watcher) -> None:
    flags = (
        "--rounds",
        str(ROUNDS),
        "--min-clients",
        "1",
        "--residual-every",
        "2",
        "--test",
        str(world.sites / "b"),
    )
    server = launch.server(*flags, "--threads", "1")
    address = address_of(server)
    page = watch.open(f"http://{server.wait_for('serving')['http']}/")
    expect(page.locator("#state")).to_have_text("Gathering clients")
    expect(page.locator("#phase")).to_have_text("0 of 1")
    page.evaluate("window.sameDocument = true")

    client = launch.client(world.sites / "a", address)
    expect(page.locator("#state")).to_have_text("Running")
    expect(page.locator("#timeline .bar-row", has_text="Round 2").first).to_be_visible()
    expect(page.locator("#accuracy .line.published")).to_be_attached()
    expect(page.locator("#clients tbody th")).to_have_text(["a"])
    expect(page.locator("#phase-bytes")).to_contain_text("student")
    expect(page.locator("#fedavg")).to_have_text(
        re.compile(r"MB of tensors so far, .* averaging full models")
    )
    expect(page.locator("#coverage tbody tr")).to_have_count(1)
    expect(page.locator("#model")).to_have_text(re.compile("student|anchors|moments"))
    expect(page.locator("#events")).to_contain_text("round_closed")
    with page.expect_download() as download:
        page.get_by_role("link", name="ledger.csv").click()
    assert download.value.path().read_text().startswith("client,round,phase")

    client.signal(signal.SIGTERM)
    assert client.end() == ExitCode.OK
    expect(page.locator("#clients-note")).to_have_text("1 client, 1 left")
    assert page.evaluate("window.sameDocument") is True

    watch.refusals_expected = True
    server.signal(signal.SIGTERM)
    assert server.end() == ExitCode.OK
    expect(page.locator("#connection")).to_have_text("Reconnecting…")
