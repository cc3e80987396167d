from __future__ import annotations

from tests.page.conftest import browser

__all__ = ["browser"]
