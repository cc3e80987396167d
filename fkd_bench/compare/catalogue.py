"""What an experiment may call methods: all that are published, configurations of FKD-RTM with a name, their titles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fkd_common.choices import UNCODED
from fkd_common.config import FKD_RTM
from fkd_common.method_registry import method_class

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
        **UNCODED,
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
    "local", "fedavg", "fedprox", "fedmd", "feddf", "fedmkd", "fedtkd", "dafkd", "fedgkd", "fedntd", "fedict",
    "pfedfda", "fed3r",
    {"label": "FED3R-RF 1,000", "method": "fed3r-rf", "options": {"features": 1000}},
    {"label": "FED3R-RF 4,000", "method": "fed3r-rf", "options": {"features": 4000}},
    "central",
    # The extractor is frozen for all methods here; what tuning it gains the personal model is in e06.
    {"label": "FKD-RTM literal", "preset": "literal", "config": {"finetune_scope": "head"}},
    FKD_RTM,
)  # fmt: skip
"""In the order of tables: one bound first, ours last."""


@lru_cache
def title_of(method: str) -> str:
    """A method as tables name it: as its class says.

    Raises:
        UsageError: It cannot be loaded here.
    """
    return "FKD-RTM" if method == FKD_RTM else method_class(method).title
