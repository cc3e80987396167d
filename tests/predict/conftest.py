from __future__ import annotations

import pytest
import torch

from tests.export.finished_run import FinishedRun, finished_run

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """The same run as the tests of exporting have: made once."""
    return finished_run(tmp_path_factory.getbasetemp() / "finished-run")
