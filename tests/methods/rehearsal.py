"""A method played through in memory, without coordinator or network: what tests of one method need.

What it returns is held to the same as in a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.codecs.networks import NetworkCodecs
from fkd_common.codecs.student import rounding
from fkd_common.config import RunConfig
from fkd_common.exchange_method import Aggregate, ExchangeMethod, Federation, Labelled, Record, Site, State
from fkd_common.method.metrics import accuracy
from fkd_common.own_code import check_aggregate, check_groups, check_layout, checked_layout, model_layout
from fkd_common.tensors import Tensors, check_schema

SMALL = {"hidden": (16, 8, 8), "dropout": (0.1, 0.0, 0.0), "batch_size": 16, "local_steps": 20, "lr": 5e-3}
"""A student that learns the synthetic problem in a few rounds of a few milliseconds."""


@dataclass(frozen=True)
class Held:
    """An upload at hand."""

    client: str
    num_samples: int
    held: Tensors

    def tensors(self) -> Tensors:
        return self.held


@dataclass
class Rehearsal:
    """Rounds of one method over some sites, packed as the run says; counts payload bytes like the ledger."""

    method: ExchangeMethod
    sites: list[Site]
    state: dict[str, Tensors] = field(init=False)
    records: list[Record] = field(default_factory=list)
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.codecs = NetworkCodecs.of(self.method)
        start = self.method.start()
        check_groups("a state", start)
        self.model_layout = model_layout(start)
        self.state = {name: self.as_sent(name, tensors) for name, tensors in start.items()}

    def as_sent(self, group: str, tensors: Tensors) -> Tensors:
        """A group of the state as everybody unpacks it."""
        return self.codecs.unpack_group(group, dict(self.codecs.pack_group(group, tensors)))

    def received(self, round_number: int, client: str) -> State:
        names = self.method.broadcast(round_number, client)
        return {name: self.state[name] for name in names if name in self.state}

    def round(self, number: int, absent: tuple[str, ...] = ()) -> Aggregate:
        uploads = []
        for site in sorted(self.sites, key=lambda site: site.name):
            if site.name in absent:
                continue
            received = self.received(number, site.name)
            n_k = len(site.train)
            tensors = self.method.local_update(site, received, number)
            layout = self.method.upload_layout(number, n_k)
            check_layout("an upload", tensors, checked_layout(layout))
            check_groups("into site.memory something", site.memory, finite=False)
            start = self.state.get(self.method.trained_group, {})
            packed = self.codecs.pack_upload(tensors, start, layout, rounding([site.seed], number, 0))
            tensors = self.codecs.unpack_upload(dict(packed), start, layout)
            check_schema(tensors, layout)
            assert self.method.flaw(tensors) is None
            uploads.append(Held(site.name, n_k, tensors))
            self.up[site.name] = self.up.get(site.name, 0) + num_bytes(packed)
            got = sum(num_bytes(self.codecs.pack_group(name, group)) for name, group in received.items())
            self.down[site.name] = self.down.get(site.name, 0) + got
        result = self.method.aggregate(self.state, uploads, number)
        check_aggregate(result, self.model_layout)
        for name, tensors in result.groups.items():
            if tensors:
                self.state[name] = self.as_sent(name, tensors)
            else:
                self.state.pop(name, None)
        self.records.append(result.record)
        return result

    def run(self, rounds: int) -> Rehearsal:
        for number in range(1, rounds + 1):
            self.round(number)
        return self

    def global_accuracy(self, test: Labelled) -> float:
        model = self.method.global_model(self.state)
        assert model is not None
        return accuracy(self.method.scores(model, test.inputs), test.labels)

    def personal_accuracy(self, test: Labelled) -> float:
        """Mean over sites of their own models on one test set."""
        found = []
        for site in self.sites:
            model = self.method.personal_model(site, self.received(self.method.config.rounds + 1, site.name))
            found.append(accuracy(self.method.scores(model, test.inputs), test.labels))
        return float(np.mean(found))


def num_bytes(tensors: Mapping[str, NDArray[Any]]) -> int:
    """Of tensors' data."""
    return sum(array.nbytes for array in tensors.values())


def clusters(n: int, d: int, num_classes: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Gaussian clusters, one per class, the same centres for every seed."""
    centres = np.random.default_rng(12345).normal(0, 1.5, (num_classes, d))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, n)
    return (centres[labels] + rng.normal(0, 1, (n, d))).astype(np.float32), labels.astype(np.int64)


def federation(*, d: int = 12, num_classes: int = 4, anchors: int = 60, **keys: Any) -> Federation:
    """A run on synthetic embeddings."""
    config = RunConfig(**{**SMALL, "method": "x", "rounds": 3, **keys})
    public, _ = clusters(anchors, d, num_classes, 99)

    def extractor() -> bytes:
        raise AssertionError("no extractor in head mode")

    return Federation(config, num_classes, np.zeros((anchors, 2, 2, 3), np.uint8), public, extractor)


def sites(of: Federation, *, count: int = 3, n: int = 120, skewed: bool = True) -> list[Site]:
    """Sites with synthetic data; skewed ones lack one class each and have unequal sizes."""
    made = []
    for k in range(count):
        h, y = clusters(n + 20 * k, of.embedding_dim, of.num_classes, k)
        if skewed:
            keep = y != k % of.num_classes
            h, y = h[keep], y[keep]
        cut = len(y) // 5
        made.append(Site(f"site{k}", Labelled(h[cut:], y[cut:]), Labelled(h[:cut], y[:cut]), seed=k))
    return made


def test_set(of: Federation, n: int = 400) -> Labelled:
    h, y = clusters(n, of.embedding_dim, of.num_classes, 4242)
    return Labelled(h, y)


test_set.__test__ = False  # type: ignore[attr-defined]  # a helper, not a test
