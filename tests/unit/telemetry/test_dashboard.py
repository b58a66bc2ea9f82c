"""The dashboard asks only for what processes emit, and the services around it are wired to each other."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from dart_streams.telemetry import names
from dart_streams.telemetry.names import BY_NAME
from tests.sources import PRODUCT, ROOT
from tests.unit.telemetry.prometheus_names import labels_of, parse_query, series_names

DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
CALL = re.compile(r"(?:create|observe)_(counter|gauge|histogram)|Observed(Counter|Gauge)")


def created() -> set[tuple[str, str]]:
    """Return name and kind of every instrument that our code creates."""
    found = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Name(id=function),
                        args=[_, ast.Attribute(value=ast.Name(id="names"), attr=constant), *_],
                    ) if call := CALL.fullmatch(function):
                        found.add((getattr(names, constant), (call[1] or call[2]).lower()))
    return found


def queries() -> Iterator[Any]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield pytest.param(target, id=f"{panel['title']}: {target['refId']}")


@pytest.mark.parametrize("target", list(queries()))
def test_a_query_asks_for_what_processes_emit(target: dict[str, str]):
    wanted, labels = parse_query(target["expr"])
    assert wanted
    assert wanted <= series_names()
    assert labels <= set().union(*map(labels_of, wanted))
    assert target["expr"].count('dart_run_id=~"$run",instance=~"$instance"') >= len(wanted)
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert shown <= labels, "a legend shows a label that the query sums away"


def test_a_query_for_something_else_would_be_found():
    assert parse_query('sum by (le) (rate(rollout_queue_bucket{topic="a"}[1m])) / 2') == (
        {"rollout_queue_bucket"},
        {"le", "topic"},
    )
    assert not {"rollout_queue_bucket", "rollout_queue_ms", "env_steps_total"} & series_names()
    assert {"rollout_queue_ms_bucket", "env_steps", "monitor_lag"} <= series_names()


def test_what_an_operator_looks_for_is_shown():
    shown = " ".join(target.values[0]["expr"] for target in queries())
    wanted = (names.MONITOR_LAG, names.ENV_SLOTS_BUSY, names.TRAINER_STALENESS)
    wanted += (names.ROLLOUT_QUEUE_MS, names.ROLLOUT_GENERATE_MS, names.ROLLOUT_SWITCH_PAUSE_MS)
    assert [name for name in wanted if name.replace(".", "_") not in shown] == []


def test_every_instrument_of_the_table_is_created():
    assert created() == {(name, one.kind) for name, one in BY_NAME.items()}


def test_the_dashboard_has_variables_for_run_and_process():
    [dashboard] = [json.loads(path.read_text()) for path in DASHBOARDS]
    run, process = dashboard["templating"]["list"]
    assert (run["name"], process["name"]) == ("run", "instance")
    for variable, label in ((run, "dart_run_id"), (process, "instance")):
        assert variable["query"]["query"].endswith(f", {label})")
        assert (variable["allValue"], variable["multi"], variable["includeAll"]) == (".*", True, True)
        names_asked = re.search(r'__name__=~"([^"]+)"', variable["query"]["query"])
        assert names_asked is not None
        assert set(names_asked[1].split("|")) <= series_names()
    assert '"$run"' in process["query"]["query"]


def test_the_services_are_wired_to_each_other():
    """Text, not YAML: this environment has no parser for it. Docker Compose checks the syntax where it is installed."""
    compose, collector, prometheus, sources = (
        (ROOT / path).read_text()
        for path in (
            "docker-compose.yml",
            "deploy/otel/collector.yaml",
            "deploy/prometheus/prometheus.yaml",
            "deploy/grafana/provisioning/datasources/datasources.yaml",
        )
    )
    for service in ("collector", "jaeger", "prometheus", "grafana", "kafka-ui"):
        assert re.search(rf"\n  {service}:\n(?:    .*\n)*?    profiles: \[observe\]\n", compose)
    for host in re.findall(r"//([a-z]+):\d+", sources):
        assert f"\n  {host}:\n" in compose
    assert "collector:8889" in prometheus
    assert "0.0.0.0:8889" in collector
    for text in (collector, (ROOT / "deploy/k8s/components/metrics/config.yaml").read_text()):
        assert "add_metric_suffixes: false" in text
        assert "resource_to_telemetry_conversion: {enabled: true}" in text
    assert "rule_files: [/etc/prometheus/alerts.yaml]" in prometheus
    assert "./deploy/prometheus/alerts.yaml:/etc/prometheus/alerts.yaml:ro" in compose
    assert "jaeger:4317" in collector
    endpoint = tomllib.loads((ROOT / "deploy/config/compose.toml").read_text())["telemetry"]["otlp_endpoint"]
    assert endpoint == "http://collector:4318"
    for mounted in re.findall(r"\./(deploy/(?:otel|prometheus|grafana)[\w/.-]*):", compose):
        assert (ROOT / mounted).exists()
