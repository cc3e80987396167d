"""Published methods as tables name them, and configurations of FKD-RTM that have a name; no method is imported."""

from __future__ import annotations

from typing import Any

from fkd_common.config import FKD_RTM

TITLES = {
    "local": "Local only",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedmd": "FedMD",
    "feddf": "FedDF",
    "fedmkd": "FedMKD-style",
    "fedtkd": "FedTKD-style",
    "dafkd": "DaFKD-F",
    "fedgkd": "FedGKD",
    "fedntd": "FedNTD",
    "fedict": "FedICT",
    "pfedfda": "pFedFDA",
    "fed3r": "FED3R",
    "fed3r-rf": "FED3R-RF",
    "central": "Central",
    FKD_RTM: "FKD-RTM",
}
"""In the order of tables: one bound first, ours last."""

PRESETS: dict[str, dict[str, Any]] = {
    "literal": {
        "kd_targets": "in_sample",
        "calibrator": "platt",
        "norm": "batch",
        "temperature": 2.0,
        "alpha_start": 0.7,
        "alpha_end": 0.3,
        "absent_classes": "literal",
        "reliability": "accuracy",
        "tau_r": 0.1,
        "correction": ["anchors"],
        "correction_at_start": False,
        "residual_form": "literal",
        "fusion": "size",
        "personal": ["finetune"],
        "finetune_scope": "block",
    },
}
"""By name, what FKD-RTM's keys are set to; `literal` is the paper as printed, whatever our defaults become."""

ALL = "all"
"""Stands for every published method, FKD-RTM as printed, and FKD-RTM."""

ALL_METHODS: tuple[str | dict[str, Any], ...] = (
    *(name for name in TITLES if name not in (FKD_RTM, "fed3r-rf", "central")),
    {"label": "FED3R-RF 1,000", "method": "fed3r-rf", "options": {"features": 1000}},
    {"label": "FED3R-RF 4,000", "method": "fed3r-rf", "options": {"features": 4000}},
    "central",
    # The extractor is frozen for all methods here; what tuning it gains the personal model is in e06.
    {"label": "FKD-RTM literal", "preset": "literal", "config": {"finetune_scope": "head"}},
    FKD_RTM,
)
