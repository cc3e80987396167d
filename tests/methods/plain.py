"""A method of a few lines that tests spoil, and a way to have it installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import Field

from fkd_common import exchange_method
from fkd_common.exchange_method import MODEL, Aggregate, ExchangeMethod, Layout, Site, State, Upload, in_order
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors

PLAIN = "plain"


class Plain(ExchangeMethod):
    """w becomes the mean of what clients send, which is w + 1."""

    title = "Plain"
    source = "nowhere"

    class Options(exchange_method.Options):
        """Of Plain."""

        beta: float = Field(0.5, ge=0)
        """Also a key of FKD-RTM."""

    def start(self) -> State:
        return {MODEL: {"w": np.zeros(3, np.float32)}}

    def upload_layout(self, round_number: int, num_samples: int) -> Layout:
        return {"w": TensorSpec((3,), "float32")}

    def aggregate(self, state: State, uploads: Sequence[Upload], round_number: int) -> Aggregate:
        return Aggregate({MODEL: {"w": np.mean([t["w"] for _, _, t in in_order(uploads)], axis=0)}})

    def local_update(self, site: Site, received: State, round_number: int) -> Tensors:
        return {"w": received[MODEL]["w"] + 1}

    def scores(self, model: Tensors, inputs: NDArray[Any], device: str = "cpu") -> NDArray[np.float32]:
        return np.zeros((len(inputs), self.num_classes), np.float32)


def install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    """Offer classes of these addresses as `plain`, besides what is installed; by default the one above."""
    own = [EntryPoint(PLAIN, value, "fkd.methods") for value in values or (f"{__name__}:{Plain.__name__}",)]
    there = entry_points(group="fkd.methods")
    monkeypatch.setattr("fkd_common.method_registry.entry_points", lambda group: [*there, *own])


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer what is installed, and nothing else."""
    monkeypatch.setattr("fkd_common.method_registry.entry_points", entry_points)
