"""A site's own record of its noised uploads: what was released, counted before it leaves; adds no noise itself."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from fkd_common.artifacts import write_atomically
from fkd_common.errors import DataError
from fkd_common.privacy_accounting import Releases

RELEASES_FILE = "releases.json"


class ReleaseLog:
    """Counts noised uploads; with a file, also over restarts of the client within a run."""

    def __init__(self, folder: Path | None = None) -> None:
        """Go on counting where an earlier process of this site stopped.

        Args:
            folder: The site's folder of the run; None counts in memory only.

        Raises:
            DataError: The file of an earlier process cannot be read: what it released is unknown.
        """
        self._path = folder / RELEASES_FILE if folder is not None else None
        self.releases = Releases()
        if self._path is not None and self._path.exists():
            try:
                self.releases = Releases(**json.loads(self._path.read_text()))
            except (OSError, ValueError, TypeError) as error:
                raise DataError(
                    f"{self._path} does not say how many noised uploads were made ({error}): take part in a new run"
                ) from error

    def add(self, *, residuals: int = 0, moments: int = 0) -> None:
        """Note uploads about to be made; one that then fails counts all the same."""
        counted = replace(
            self.releases,
            residuals=self.releases.residuals + residuals,
            moments=self.releases.moments + moments,
        )
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(asdict(counted)).encode())
        self.releases = counted


def noise_generator() -> np.random.Generator:
    """Noise nobody can repeat: seeded by the operating system's secure source, never by the run's seed."""
    return np.random.default_rng(secrets.randbits(256))
