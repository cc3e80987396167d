"""The tables for operators list what the programs have: no less, no more."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from fkd_common.config import RunConfig
from fkd_common.errors import ExitCode
from fkd_common.method.moments import num_moment_features
from fkd_common.method.student_layout import student_layout
from fkd_server.web.metric_table import METRICS as SERVED

from .documents import GUIDE, MESSAGES, METRICS, rows, section
from .words_in_source import CLIENT, COMMON, RELAY, SERVER, events, reasons

ROOT = Path(__file__).parents[2]


def first_cells(document: Path, heading: str) -> list[str]:
    return [row[0] for row in rows(section(document, heading))]


def test_every_reason_is_listed_once() -> None:
    listed = first_cells(MESSAGES, "Reasons")
    assert listed == sorted(reasons())


def test_every_event_is_listed_once_where_it_is_logged() -> None:
    of_server, of_client = events(SERVER, RELAY), events(CLIENT)
    both = events(COMMON)
    assert first_cells(MESSAGES, "Events of the coordinator") == sorted(of_server | both)
    assert first_cells(MESSAGES, "Events of a site") == sorted(of_client | both)


def test_every_metric_is_listed_with_its_kind_labels_and_meaning() -> None:
    listed = [
        (name, kind, labels.replace("`", ""), text) for name, kind, labels, text in rows(METRICS.read_text())
    ]
    assert listed == [(m.name, m.kind, ", ".join(m.labels) or "–", m.meaning) for m in SERVED]


def test_every_exit_code_is_listed_with_its_name() -> None:
    listed = [(int(row[0]), row[1]) for row in rows(section(GUIDE, "Exit codes"))]
    assert listed == [(int(code), code.name) for code in ExitCode]


def test_codes_where_a_restart_cannot_help_are_those_of_the_units() -> None:
    useless = {row[0] for row in rows(section(GUIDE, "Exit codes")) if row[3] == "no"}
    for unit in ("fkd-server.service", "fkd-client@.service"):
        text = (ROOT / "deploy" / "systemd" / unit).read_text()
        prevented = re.search(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
        assert prevented is not None
        assert set(prevented[1].split()) == useless


def test_every_alert_has_a_section_where_its_runbook_points() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert [rule["annotations"]["runbook"] for rule in alerts] == [
        f"docs/operations.md#{rule['alert'].lower()}" for rule in alerts
    ]
    sections = re.findall(r"^### (\w+)$", section(GUIDE, "Alerts"), re.MULTILINE)
    assert sections == [rule["alert"] for rule in alerts]


def test_sizes_in_the_guide_are_those_of_the_default_method() -> None:
    text, config, classes = section(GUIDE, "Size the machine"), RunConfig(), 10
    p = num_moment_features(config.hidden, 512, config.moment_features)
    student = sum(
        spec.num_bytes for spec in student_layout(512, config.hidden, classes, config.norm).values()
    )
    moments = 4 * (p * (p + 1) // 2 + p * classes)
    assert f"({p:,} by default)" in text
    assert f"| {student / 1e6:.2f} MB as fp32;" in text
    assert f"| {moments / 1e6:.2f} MB as fp32;" in text
