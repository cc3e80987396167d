"""Writes deploy/monitoring/alerts.yaml as the Prometheus operator wants it: `python -m tests.kubernetes.alerts`."""

from __future__ import annotations

from tests.kubernetes.manifests import FOLDER, ROOT

ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yaml"
RULE = FOLDER / "components" / "prometheus-rule" / "rule.yaml"

HEAD = """\
# Made from deploy/monitoring/alerts.yaml by `python -m tests.kubernetes.alerts`: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fkd
spec:
"""


def as_rule(alerts: str) -> str:
    """The same groups of rules as a custom resource."""
    body = alerts[alerts.index("groups:") :]
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in body.splitlines())


if __name__ == "__main__":
    RULE.write_text(as_rule(ALERTS.read_text()))
