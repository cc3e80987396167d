"""A method without learning: whatever tensors go out, a client sends them back moved a little; needs no torch.

It is installed for the coordinators that ``fkd-bench load`` starts and for nobody else: it is none to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.exchange_method import (
    MODEL,
    Aggregate,
    ExchangeMethod,
    Layout,
    Site,
    State,
    Upload,
)
from fkd_common.method.aggregation import WeightedAverage
from fkd_common.method.student_layout import layout_of
from fkd_common.method_registry import GROUP
from fkd_common.tensors import Tensors, decode

NAME = "load"
_STEP = 1e-4


def moved(tensors: Mapping[str, NDArray[Any]], client: int) -> Tensors:
    """What a no-op client sends back: every floating-point value larger by 1e-4 · (client + 1).

    Without it all uploads would be one blob, which is stored once.
    """
    step = _STEP * (client + 1)
    return {
        name: np.asarray(array + array.dtype.type(step)) if array.dtype.kind == "f" else array
        for name, array in tensors.items()
    }


class Load(ExchangeMethod):
    """W_{t+1} = Σ n_k W_k / Σ n_k of any tensors; the run's extractor is the first W."""

    title = "Load"
    source = "none: it measures the coordinator"

    @cached_property
    def _first(self) -> Layout:
        return layout_of(decode(self.federation.extractor()))

    def start(self) -> State:
        """The tensors in the extractor's place."""
        return {MODEL: decode(self.federation.extractor())}

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        """All of them."""
        return self._first

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        """The average, in float64 and sorted client order."""
        average = WeightedAverage()
        for upload in uploads:  # without a name, which would hold one while the next is read
            average.add(upload.tensors(), upload.num_samples)
        return Aggregate({MODEL: average.result()})

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        """See :func:`moved`."""
        return moved(received[MODEL], 0)

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        """Nothing is predicted."""
        return np.zeros((len(inputs), self.num_classes), np.float32)


def install(folder: Path) -> None:
    """Make the method known to programs that have this folder on their PYTHONPATH, as an installed package would."""
    described = folder / "fkd_load-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: fkd-load\nVersion: 0\n")
    (described / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = {__name__}:{Load.__name__}\n")
