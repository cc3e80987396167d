from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fkd_relay import link


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A link that is driven step by step waits for nobody, and heartbeats end with the test."""
    made: list[link.UpstreamLink] = []
    real = link.UpstreamLink.__init__

    def note(self: link.UpstreamLink, *arguments: object, **keywords: object) -> None:
        real(self, *arguments, **keywords)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(link.UpstreamLink, "__init__", note)
    monkeypatch.setattr(link.UpstreamLink, "_pause", lambda self, seconds: None)
    monkeypatch.setattr(link, "PATIENCE_S", 0.01)
    monkeypatch.setattr(link, "LOOK_S", 0.0)
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)
    yield
    for each in made:
        each.close()
