"""The dashboard asks only for what processes emit, and the services around it are wired to each other."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dart_streams.telemetry import names
from dart_streams.telemetry.instrument_table import BY_NAME

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
SERIES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
"""What Prometheus calls the series of an instrument, after its name, as the collector is set up."""
WORDS = frozenset(
    ["by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool", "and", "or", "unless"]
)


CALL = re.compile(r"(?:create|observe)_(counter|gauge|histogram)|Observed(Counter|Gauge)")


def created() -> set[tuple[str, str]]:
    """Return name and kind of every instrument that our code creates."""
    found = set()
    for folder in ("dart_streams", "workers", "trainer"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Name(id=function),
                        args=[_, ast.Attribute(value=ast.Name(id="names"), attr=constant), *_],
                    ) if call := CALL.fullmatch(function):
                        found.add((getattr(names, constant), (call[1] or call[2]).lower()))
    return found


def series() -> set[str]:
    return {name.replace(".", "_") + suffix for name, one in BY_NAME.items() for suffix in SERIES[one.kind]}


def asked(expression: str) -> tuple[set[str], set[str]]:
    """Return the series that a PromQL expression names, and the labels that it groups by or picks."""
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression):
        labels |= {label.strip() for label in group.split(",")}
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)", " ", expression)
    words = re.findall(r"\b([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare)
    return {word for word in words if word not in WORDS}, labels


def queries() -> Iterator[Any]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield pytest.param(target, id=f"{panel['title']}: {target['refId']}")


@pytest.mark.parametrize("target", list(queries()))
def test_a_query_asks_for_what_processes_emit(target: dict[str, str]):
    wanted, labels = asked(target["expr"])
    assert wanted
    assert wanted <= series()
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert shown <= labels, "a legend shows a label that the query sums away"


def test_a_query_for_something_else_would_be_found():
    assert asked('sum by (le) (rate(rollout_queue_bucket{topic="a"}[1m])) / 2') == (
        {"rollout_queue_bucket"},
        {"le", "topic"},
    )
    assert not {"rollout_queue_bucket", "rollout_queue_ms", "env_steps_total"} & series()
    assert {"rollout_queue_ms_bucket", "env_steps", "monitor_lag"} <= series()


def test_what_an_operator_looks_for_is_shown():
    shown = " ".join(target.values[0]["expr"] for target in queries())
    wanted = (names.MONITOR_LAG, names.ENV_SLOTS_BUSY, names.TRAINER_STALENESS)
    wanted += (names.ROLLOUT_QUEUE_MS, names.ROLLOUT_GENERATE_MS, names.ROLLOUT_SWITCH_PAUSE_MS)
    assert [name for name in wanted if name.replace(".", "_") not in shown] == []


def test_every_instrument_of_the_table_is_created():
    assert created() == {(one.name, one.kind) for one in BY_NAME.values()}


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
    assert "add_metric_suffixes: false" in collector
    assert "jaeger:4317" in collector
    endpoint = tomllib.loads((ROOT / "deploy/config/compose.toml").read_text())["telemetry"]["otlp_endpoint"]
    assert endpoint == "http://collector:4318"
    for mounted in re.findall(r"\./(deploy/(?:otel|prometheus|grafana)[\w/.-]*):", compose):
        assert (ROOT / mounted).exists()
