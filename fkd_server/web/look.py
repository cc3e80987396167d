"""Questions of the event loop to the run, which may have to wait for the call at work; answers nothing itself."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fkd_common.errors import UnreachableError
from fkd_common.rpc import PREPARING
from fkd_server.overview import Overview

_Answer = TypeVar("_Answer")

THREADS = 2
"""Questions at work at once: they wait for one another at the run's lock anyway."""


class Look:
    """Asks, in threads of its own, once there is a run to ask."""

    def __init__(self, unready: Callable[[], str]) -> None:
        """Nothing to see yet.

        Args:
            unready: Why the run is not served, in a few words; empty while it is.
        """
        self.unready = unready
        self._overview: Overview | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="web")

    def show(self, overview: Overview) -> None:
        """From now on there is a run."""
        self._overview = overview

    @property
    def overview(self) -> Overview | None:
        """The run, if there is one: for those who are in a thread of their own."""
        return self._overview

    async def ask(self, question: Callable[[Overview], _Answer]) -> _Answer:
        """Ask the run.

        Raises:
            UnreachableError: It is being prepared, or its disk does not answer.
        """
        overview = self._overview
        if overview is None:
            raise UnreachableError(
                f"the run is not there yet: {self.unready() or PREPARING}", reason=PREPARING
            )
        try:
            return await self.think(lambda: question(overview))
        except (OSError, sqlite3.Error) as error:
            raise UnreachableError(
                f"the coordinator's disk does not answer: {error}", reason="STORAGE"
            ) from error

    async def think(self, work: Callable[[], _Answer]) -> _Answer:
        """Do something that takes a moment, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """No more questions; one at work ends in its own time."""
        self._threads.shutdown(wait=False, cancel_futures=True)
