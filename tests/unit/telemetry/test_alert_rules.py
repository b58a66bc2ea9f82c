"""Alert rules ask for what processes emit, by the labels that it has; `make test-alerts` runs them in promtool."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.telemetry.prometheus_names import labels_of, parse_query, series_names

RULES = Path(__file__).parents[3] / "deploy/prometheus/alerts.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"]]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_what_processes_emit(alert: dict):
    wanted, labels = parse_query(alert["expr"])
    assert wanted
    assert wanted <= series_names()
    assert labels <= set().union(*map(labels_of, wanted))
    shown = {label for text in alert["annotations"].values() for label in re.findall(r"\$labels\.(\w+)", text)}
    assert shown <= labels, "a text shows a label that the query sums away"
    assert "dart_run_id" in shown | labels


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_a_severity_and_says_what_to_do(alert: dict):
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Dart([A-Z][a-z]+)+", alert["alert"])
    assert re.fullmatch(r"\d+m", alert.get("for", "0m"))
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "action"}
    assert all(text.endswith(".") for text in alert["annotations"].values())


def test_alerts_have_different_names():
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS) > 10
