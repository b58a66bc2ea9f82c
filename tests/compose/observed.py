"""The metrics and traces of the profile `observe`, queried through Grafana's data sources."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from tests.compose.stack import ROOT, Stack

GRAFANA = ROOT / "deploy/grafana"
SOURCES = (GRAFANA / "provisioning/datasources/datasources.yaml").read_text()


def source(kind: str) -> str:
    """Return the address of a data source, as Grafana is configured with it."""
    found = re.search(rf'type: {kind},[^}}]*url: "([^"]+)"', SOURCES)
    assert found, f"no data source of type {kind}"
    return found[1]


def queries() -> Iterator[tuple[str, str]]:
    """Yield the panels' titles and what they ask Prometheus for."""
    for path in sorted((GRAFANA / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"].replace("$run", ".*").replace("$instance", ".*")


def panels(stack: Stack) -> dict[str, list[int]]:
    """Return how many series each panel of the dashboard shows now, one number a query."""
    asked = list(queries())
    address = f"{source('prometheus')}/api/v1/query?query="
    answers = stack.ask(*(address + quote(expression) for _, expression in asked))
    shown: dict[str, list[int]] = {}
    for (title, _), answer in zip(asked, answers, strict=True):
        assert answer["status"] == "success"
        series = [one for one in answer["data"]["result"] if one["value"][1] != "NaN"]
        shown.setdefault(title, []).append(len(series))
    return shown


def rules(stack: Stack) -> dict[str, str]:
    """Return the health of each alert rule, as Prometheus evaluates it."""
    (answer,) = stack.ask(f"{source('prometheus')}/api/v1/rules")
    return {rule["name"]: rule["health"] for group in answer["data"]["groups"] for rule in group["rules"]}


Trace = dict[str, Any]


def traces(stack: Stack, service: str, operation: str) -> list[Trace]:
    """Return the newest traces of an operation in Jaeger."""
    wanted = {"service": service, "operation": operation, "limit": 20}
    (answer,) = stack.ask(f"{source('jaeger')}/api/traces?{urlencode(wanted)}")
    return list(answer["data"])


def spans(trace: Trace) -> set[tuple[str, str]]:
    """Return the spans of a trace, each as its service and operation."""
    services = {name: process["serviceName"] for name, process in trace["processes"].items()}
    return {(services[span["processID"]], span["operationName"]) for span in trace["spans"]}
