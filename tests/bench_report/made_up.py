"""Records as a grid of real runs would leave them: seventeen methods on CIFAR-10; every number follows from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fkd_bench.compare.measures import Record

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SITES = 10
HEAD = 1_727_040
"""Bytes of the head with its running statistics."""


@dataclass(frozen=True)
class Method:
    """What its runs look like."""

    name: str
    label: str
    accuracy: tuple[float, float]
    """On the whole test set with Dirichlet 0.1 and 0.5."""
    personal: tuple[float, float] | None
    up: int
    """Bytes a round."""
    down: int
    rounds: int = 30
    clients_only: bool = False


METHODS = (
    Method("fedavg", "FedAvg", (0.464, 0.650), (0.845, 0.760), HEAD, HEAD),
    Method("fedprox", "FedProx", (0.483, 0.653), (0.843, 0.759), HEAD, HEAD),
    Method("fedntd", "FedNTD", (0.521, 0.662), (0.839, 0.761), HEAD, HEAD),
    Method("feddf", "FedDF", (0.502, 0.657), None, HEAD, HEAD),
    Method("fedmkd", "FedMKD-style", (0.495, 0.655), None, HEAD, HEAD),
    Method("dafkd", "DaFKD", (0.511, 0.659), None, HEAD + 2052, HEAD),
    Method("fedgkd", "FedGKD", (0.497, 0.660), (0.841, 0.758), HEAD, 2 * HEAD),
    Method("fedmd", "FedMD", (0.331, 0.548), (0.832, 0.741), 20_000, 20_000, clients_only=True),
    Method("fedtkd", "FedTKD-style", (0.342, 0.552), (0.834, 0.744), 20_000, 20_000, clients_only=True),
    Method("fedict", "FedICT", (0.355, 0.561), (0.838, 0.749), 10_400_000, 200_000, clients_only=True),
    Method("pfedfda", "pFedFDA", (0.301, 0.532), (0.852, 0.771), 1_069_056, 1_069_056, 1, clients_only=True),
    Method("fed3r", "FED3R", (0.687, 0.688), None, 546_000, 20_500, 1),
    Method("fed3r-rf", "FED3R-RF 4000", (0.7185, 0.7190), None, 40_700_000, 180_000, 1),
    Method("local", "Local only", (0.285, 0.498), (0.828, 0.729), 0, 0, 0, clients_only=True),
    Method("central", "Central (bound)", (0.732, 0.732), None, 0, 0, 0),
    Method("fkd-rtm", "FKD-RTM literal", (0.470, 0.645), (0.861, 0.770), HEAD, HEAD),
    Method("fkd-rtm", "FKD-RTM", (0.7215, 0.7250), (0.901, 0.802), HEAD + 133_000, HEAD + 60_000),
)
PARTITIONS = ("dirichlet:0.1", "dirichlet:0.5")
EXPERIMENT: dict[str, Any] = {
    "name": "e01-cifar10",
    "title": "Accuracy under label skew, CIFAR-10",
    "question": "Which global and which personal model is best when the sites' classes differ?",
    "columns": "partition",
    "metrics": ["global", "personal_matched"],
    "minutes": 34,
    "command": "fkd-bench compare e01-cifar10 --data-folder data",
}


def grid(
    methods: Sequence[Method] = METHODS,
    partitions: Sequence[str] = PARTITIONS,
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Record]:
    """All cells, those of one partition and seed beside each other."""
    return [cell(method, partition, seed) for partition in partitions for seed in seeds for method in methods]


def cell(method: Method, partition: str, seed: int, **varied: Any) -> Record:
    """One finished run."""
    draw = np.random.default_rng([seed, *method.label.encode(), *partition.encode()])
    alpha = float(partition.partition(":")[2])
    counts = _counts(alpha, seed)
    mild = alpha >= 0.3
    final = method.accuracy[mild] + draw.normal(0, 0.004 if mild else 0.012)
    matched = None if method.personal is None else method.personal[mild] + draw.normal(0, 0.01)
    rounds = list(_rounds(method, final, draw))
    last = rounds[-1] if rounds else {"up": 0, "down": 0}
    sites = {
        f"shard{k}": float(np.clip(matched + draw.normal(0, 0.06), 0, 1)) for k in range(SITES)
    } if matched is not None else {}  # fmt: skip
    config = {
        "method": method.name, "rounds": max(method.rounds, 1), "local_steps": 60, "clients_per_round": 0.7,
        "seed": seed, "temperature": 2.0, "correction": ["anchors", "moments"], "norm_bound": None,
        "kd_targets": "in_sample" if method.label.endswith("literal") else "out_of_fold",
        "options": {"mu": 0.01} if method.name == "fedprox" else {},
    }  # fmt: skip
    whole = None if method.clients_only else final
    phases = {"embed": 0.2, "teacher": 28.5, "local": 0.5 * method.rounds, "server": 2.0}
    if method.name == "fkd-rtm":
        phases |= {"student": 21.0, "residuals": 4.2, "moments": 3.4, "votes": 0.1, "personal": 12.0}
    return {
        "cell": _hash("cell", method.label, partition, seed, varied),
        "experiment": "e01-cifar10", "method": method.name, "label": method.label, "dataset": "cifar10",
        "partition": partition, "clients": SITES, "seed": seed,
        "varied": {"partition": partition, **varied}, "config": config,
        "config_hash": _hash("config", method.label, varied), "partition_hash": _hash(partition, seed),
        "git": "842bc2b0c0ffee", "model_hash": None if whole is None else _hash("model", method.label, seed),
        "accuracy": {
            "global": whole, "personal_full": final * 0.9 if whole is None else 0.39 if sites else None,
            "personal_matched": matched, "personal_matched_worst": min(sites.values()) if sites else None,
        },
        "rounds": rounds,
        "recall": None if whole is None else [float(v) for v in np.clip(final + draw.normal(0, 0.1, 10), 0, 1)],
        "class_names": list(CLASSES), "class_counts": counts,
        "weights": _weights(method, counts), "reliability": None,
        "calibration": None if whole is None else _calibration(final, draw),
        "teacher": {"ece_before": 0.12, "ece_after": 0.04, "nll_before": 0.9, "nll_after": 0.7}
        if method.name == "fkd-rtm" else None,
        "clients_matched": sites,
        "bytes": {"up": last["up"], "down": last["down"], "message_up": last["up"], "message_down": last["down"]},
        "excluded": [],
        "seconds": {"wall": 60 + 2.0 * len(rounds), "cpu": 55 + 2.0 * len(rounds), "phases": phases},
        "error": None,
    }  # fmt: skip


def failed(method: Method, partition: str, seed: int, sentence: str) -> Record:
    """A run that ended with an error: most of a record is missing."""
    whole = cell(method, partition, seed)
    kept = (
        "cell",
        "experiment",
        "method",
        "label",
        "dataset",
        "partition",
        "clients",
        "seed",
        "varied",
        "config",
    )
    return {**{name: whole[name] for name in kept}, "accuracy": {}, "rounds": [], "error": sentence}


def _rounds(method: Method, final: float, draw: np.random.Generator) -> Iterator[Record]:
    start = 0.1 if method.rounds > 1 else final
    for number in range(1, method.rounds + 1):
        share = 1 - np.exp(-number / 4) if number < method.rounds else 1.0
        noise = draw.normal(0, 0.01) if number < method.rounds else 0.0
        score = float(start + (final - start) * share + noise)
        yield {
            "round": number,
            "accuracy": None if method.clients_only else score,
            "accuracies": {"personal_full": score * 0.9} if method.clients_only else {"student": score},
            "up": method.up * number * 7 // 10, "down": method.down * number * 7 // 10, "seconds": 2.1,
            "phases": {"local": 1.2},
        }  # fmt: skip


def _counts(alpha: float, seed: int) -> list[list[int]]:
    shares = np.random.default_rng(seed).dirichlet(np.full(SITES, alpha), size=len(CLASSES))
    return [[int(4950 * shares[label, site]) for label in range(len(CLASSES))] for site in range(SITES)]


def _weights(method: Method, counts: Sequence[Sequence[int]]) -> dict[str, float] | None:
    if method.clients_only or method.rounds < 2:
        return None
    sizes = {f"shard{k}": float(sum(own)) for k, own in enumerate(counts) if k not in (2, 5, 7)}
    if method.name == "fkd-rtm":
        sizes = {name: size * (0.6 + 0.04 * place) for place, (name, size) in enumerate(sizes.items())}
    return {name: size / sum(sizes.values()) for name, size in sizes.items()}


def _calibration(final: float, draw: np.random.Generator) -> Record:
    confidence = [0.05 + 0.1 * place for place in range(10)]
    gap = abs(draw.normal(0.05, 0.03))
    right = [max(0.0, value - gap * value) for value in confidence]
    return {
        "confidence": confidence, "accuracy": right, "count": [0, 20, 200, 500, 900, 1200, 1500, 1700, 1900, 2080],
        "ece": gap * final, "nll": 1.4 - final,
    }  # fmt: skip


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
