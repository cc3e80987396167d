"""Holds an object against the published schema of its kind; an unknown field is an error."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
from cloudcoil.models.cert_manager import v1 as cert_manager
from cloudcoil.models.prometheus_operator import v1 as prometheus

Object = dict[str, Any]

CUSTOM = {
    ("cert-manager.io/v1", "Certificate"): cert_manager.Certificate,
    ("cert-manager.io/v1", "Issuer"): cert_manager.Issuer,
    ("monitoring.coreos.com/v1", "PrometheusRule"): prometheus.PrometheusRule,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): prometheus.ServiceMonitor,
}
"""Models made from the custom resource definitions of cert-manager and of the Prometheus operator."""


def check(found: Object, version: str) -> None:
    """Validate an object as a cluster of that version would, and more strictly.

    Raises:
        ValueError: Naming what is wrong.
    """
    model = CUSTOM.get((found["apiVersion"], found["kind"]))
    try:
        if model is None:
            kubernetes_validate.validate(found, version, strict=True)
            return
        read = model.model_validate(found).model_dump(by_alias=True, exclude_unset=True, mode="json")
    except (
        kubernetes_validate.ValidationError,
        kubernetes_validate.SchemaNotFoundError,
        ValueError,
    ) as error:
        raise ValueError(f"{found['kind']} {found['metadata']['name']}: {error}") from error
    if lost := _lost(found, read):
        raise ValueError(f"{found['kind']} {found['metadata']['name']}: unknown fields {', '.join(lost)}")


def _lost(given: Any, read: Any, at: str = "") -> list[str]:
    """Where a model, which ignores fields that it does not know, has dropped some."""
    if isinstance(given, dict):
        found = [f"{at}.{key}" for key in given if not isinstance(read, dict) or key not in read]
        return found + [
            lost for key in given if key in read for lost in _lost(given[key], read[key], f"{at}.{key}")
        ]
    if isinstance(given, list):
        pairs = zip(given, read, strict=True)
        return [
            lost for index, (one, other) in enumerate(pairs) for lost in _lost(one, other, f"{at}[{index}]")
        ]
    return []
