"""Prometheus's promtool reads the alert rules, and fires them on series of their cause only."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.sources import ROOT

RULES = ROOT / "deploy/prometheus/alerts.yaml"
CASES = Path(__file__).parent / "cases.yaml"
PROMTOOL = ROOT / ".dart/alerts-test/promtool"

needs_promtool = pytest.mark.skipif(not PROMTOOL.exists(), reason="`make test-alerts` fetches promtool")


def check(*arguments: object) -> str:
    done = subprocess.run([PROMTOOL, *map(str, arguments)], cwd=CASES.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_accepts_the_rules():
    assert f"{RULES.read_text().count('- alert:')} rules found" in check("check", "rules", RULES)


@needs_promtool
def test_alerts_fire_on_their_cause_only():
    assert "SUCCESS" in check("test", "rules", CASES)


@needs_promtool
def test_a_rule_with_another_bound_fails_its_case(tmp_path: Path):
    (tmp_path / "alerts.yaml").write_text(RULES.read_text().replace("> 60000", "> 600000"))
    cases = CASES.read_text().replace("../../deploy/prometheus/alerts.yaml", str(tmp_path / "alerts.yaml"))
    (tmp_path / "cases.yaml").write_text(cases)
    done = subprocess.run([PROMTOOL, "test", "rules", tmp_path / "cases.yaml"], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.findall(r"alertname: *(\w+)", done.stdout + done.stderr) == ["DartAnswersSlow"]


@needs_promtool
def test_promtool_accepts_the_configuration_of_prometheus(tmp_path: Path):
    """With the rules where the container has them."""
    text = (ROOT / "deploy/prometheus/prometheus.yaml").read_text()
    (tmp_path / "prometheus.yaml").write_text(text.replace("/etc/prometheus/alerts.yaml", str(RULES)))
    assert "SUCCESS" in check("check", "config", tmp_path / "prometheus.yaml")


def test_every_alert_has_a_case_that_fires():
    rules = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    cases = [one for case in yaml.safe_load(CASES.read_text())["tests"] for one in case["alert_rule_test"]]
    assert set(rules) == {one["alertname"] for one in cases if one["exp_alerts"]}
