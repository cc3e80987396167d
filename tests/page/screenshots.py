"""`python -m tests.page.screenshots OUT`: the pictures of docs/images, taken of the page in the middle of a real run.

Four sites share the handwritten digits as in `make demo`. Letters look as this machine's fonts do.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from fkd_shards.create import CreateRequest, create
from fkd_shards.partitions import Partition
from tests.e2e.programs import Launcher
from tests.page.watching import BROWSER_FLAGS, DESKTOP, PHONE, Watcher
from tests.tools import require_tool

SITES = ("city-hospital", "harbour-clinic", "north-lab", "st-anna")
FLAGS = [
    "--rounds",
    "24",
    "--residual-every",
    "3",
    "--local-steps",
    "20",
    "--min-clients",
    str(len(SITES)),
    "--threads",
    "1",
]
MIDDLE = re.compile(r"^1[3-7] of")
"""Rounds in which pictures are taken."""
LONGEST_MS = 240_000
COLOURS = 128


@dataclass(frozen=True)
class Picture:
    """One file."""

    name: str
    size: tuple[int, int]
    theme: str
    height: int
    """How much of the page is shown, in CSS pixels from its top."""


PICTURES = [
    Picture("page-desktop-light", DESKTOP, "light", 2400),
    Picture("page-desktop-dark", DESKTOP, "dark", 2400),
    Picture("page-phone-light", PHONE, "light", 1500),
    Picture("page-phone-dark", PHONE, "dark", 1500),
]


def main(out: Path) -> None:
    """Run a federation, take the pictures, end it."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        launcher = Launcher(Path(folder), Path(folder) / "cache", Path(folder) / "prepared")
        browser = playwright.chromium.launch(executable_path=require_tool("chromium"), args=BROWSER_FLAGS)
        try:
            url = start_run(launcher, Path(folder) / "shards")
            pages = [Watcher(browser).open(url, picture.size, picture.theme) for picture in PICTURES]
            expect(pages[0].locator("#round")).to_have_text(MIDDLE, timeout=LONGEST_MS)
            expect(pages[0].locator("#phase")).to_have_text("student", timeout=LONGEST_MS)
            for picture, page in zip(PICTURES, pages, strict=True):
                (out / f"{picture.name}.png").write_bytes(taken(page, picture))
        finally:
            browser.close()
            launcher.stop()


def start_run(launcher: Launcher, shards: Path) -> str:
    """A coordinator and its sites, at work; where its page is."""
    create(
        CreateRequest(
            "digits", len(SITES), Partition.parse("dirichlet:0.1"), 0, shards, anchors=100, public=300
        )
    )
    parts = [word for part in ("public", "anchors", "test") for word in (f"--{part}", str(shards / part))]
    places = ["--port", "0", "--runs", str(launcher.runs), "--run-id", "digits"]
    server = launcher.start("server", ["fkd_server.cli", *places, "--extractor", "pretrain", *parts, *FLAGS])
    said = server.wait_for("serving", within_s=LONGEST_MS / 1000)  # once the extractor has been pretrained
    for number, name in enumerate(SITES):
        launcher.client(shards / f"shard{number}", str(said["address"]), name=name)
    return f"http://{said['http']}/"


def taken(page: Page, picture: Picture) -> bytes:
    """A picture of the page, in few colours."""
    whole = page.evaluate("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": picture.size[0], "height": min(picture.height, whole)}
    raw = page.screenshot(full_page=True, clip=clip)  # type: ignore[arg-type]
    small = io.BytesIO()
    Image.open(io.BytesIO(raw)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
