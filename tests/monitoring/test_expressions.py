"""Every expression of the dashboard and of the alerts, asked of a real Prometheus that scraped a real run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fkd_server.web.metric_table import METRICS, Kind
from tests.crash.federation import NAMES, Federation, free_port
from tests.tools import require_tool

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
CONFIGURATION = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SHOWN = [target["expr"] for panel in PANELS for target in panel["targets"]]
ALERTS = [
    rule["expr"]
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]

NOT_IN_THIS_RUN = {"fkd_accuracy", "fkd_certificate_expiry_timestamp_seconds"}
"""It has neither a test set nor TLS."""

PATIENCE_S = 60.0

ROUNDS = 4


class Prometheus:
    """Answers queries about a run."""

    def __init__(self, address: str, since: float) -> None:
        self._address = address
        self._since = since

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def over_the_run(self, expression: str) -> list[Any]:
        """Series of an expression at any time since the run began."""
        end = time.time() + 1  # the last step may be up to one second before the end
        found = self.ask("query_range", query=expression, start=str(self._since), end=str(end), step="0.1")
        return list(found["result"])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes a coordinator through a whole run, after which its clients go away."""
    program = require_tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    run = Federation(folder / "federation", rounds=ROUNDS)
    began, port = time.time(), free_port()
    server = run.server(FKD_SERVE="true")
    said = server.wait_for("serving")
    (job,) = CONFIGURATION["scrape_configs"]
    job["static_configs"] = [{"targets": [said["http"]]}]
    CONFIGURATION["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    CONFIGURATION["rule_files"] = [str(FOLDER / "alerts.yaml")]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    found = Prometheus(f"127.0.0.1:{port}", began)
    try:
        until(found, "fkd_ready == 1", folder)
        clients = [run.client(name) for name in NAMES]
        for number in range(1, ROUNDS + 1):
            server.wait_for("round_opened", lambda event, number=number: event["round"] == number)
            clients[-1].signal(signal.SIGSTOP)  # some phase of the round stays open until it has been scraped
            until(found, f"fkd_round == {number} and fkd_deadline_seconds", folder)
            clients[-1].signal(signal.SIGCONT)
        server.wait_for("staying")
        until(found, 'fkd_run_state{state="completed"} == 1', folder)
        until(found, f'fkd_clients{{state="left"}} == {len(NAMES)}', folder)
        yield found
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        run.stop()


def until(found: Prometheus, expression: str, folder: Path) -> None:
    """Wait for something to be scraped."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if found.ask("query", query=expression)["result"]:
                return
        except OSError:  # it is starting
            pass
        assert time.monotonic() < deadline, (expression, (folder / "prometheus.log").read_text()[-2000:])
        time.sleep(0.1)


def as_grafana_asks(expression: str) -> str:
    """With its variables filled in: whatever job and instance, and a rate over some scrapes."""
    for variable in ("job", "instance"):
        expression = expression.replace(f'{variable}="${variable}"', f'{variable}=~".+"')
    return expression.replace("$__rate_interval", "5s")


@pytest.mark.parametrize("expression", SHOWN)
def test_every_panel_has_something_to_show(prometheus: Prometheus, expression: str) -> None:
    # Nobody falls silent in this run; a panel of those who have shows nothing, which is well.
    found = prometheus.over_the_run(as_grafana_asks(expression.removesuffix(" == 0")))
    if not any(name in expression for name in NOT_IN_THIS_RUN):
        assert found, expression


@pytest.mark.parametrize("expression", ALERTS)
def test_every_alert_can_be_asked_of_what_is_scraped(prometheus: Prometheus, expression: str) -> None:
    prometheus.over_the_run(expression)
    for name in metrics_in(expression) - NOT_IN_THIS_RUN:
        assert prometheus.over_the_run(name), f"{name} of {expression}"


def test_the_alerts_are_loaded_and_well(prometheus: Prometheus) -> None:
    (group,) = prometheus.ask("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}


def test_an_alert_fires_in_a_real_run(prometheus: Prometheus) -> None:
    """The shortest that must: one without a wait would need a run that fails; `pending` is as far as these get."""
    assert prometheus.over_the_run('ALERTS{alertname="FkdWaitingForClients"}')


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:fkd|process)_\w+|\bup\b", expression))


def served() -> set[str]:
    """Names of series by the table."""
    names = {"up"}
    for metric in METRICS:
        parts = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        names.update(metric.name + part for part in parts)
    return names


@pytest.mark.parametrize("expression", [*SHOWN, *ALERTS])
def test_expressions_use_metrics_that_there_are(expression: str) -> None:
    assert metrics_in(expression) <= served()
    assert metrics_in(expression)


def test_every_metric_of_ours_is_on_the_dashboard_or_in_an_alert() -> None:
    used = {name for expression in (*SHOWN, *ALERTS) for name in metrics_in(expression)}
    unused = {
        metric.name
        for metric in METRICS
        if metric.name.startswith("fkd_") and not any(name.startswith(metric.name) for name in used)
    }
    assert unused <= {"fkd_run_info", "fkd_phase_open"}


def test_the_dashboard_asks_for_its_data_source_and_coordinator() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance"]
    assert variables["datasource"]["type"] == "datasource"
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"]
        for target in panel["targets"]:
            assert 'job="$job",instance="$instance"' in target["expr"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_configuration_is_one() -> None:
    checked = subprocess.run(
        [require_tool("promtool"), "check", "config", str(FOLDER / "prometheus.yaml")],
        capture_output=True,
        timeout=30,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
