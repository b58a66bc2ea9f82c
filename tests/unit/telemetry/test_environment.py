"""What OpenTelemetry's variables in a shell do to a process is said, or refused; nothing is lost silently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.util.re import parse_env_headers

from dart_streams.errors import ConfigError
from dart_streams.telemetry.environment import (
    COUNTS,
    DEFAULT_INTERVAL_MS,
    HEADERS,
    check_environment,
    disabled_reason,
    metrics_interval_ms,
)

PROGRAM = """
import sys
from dart_streams.config import parse
from dart_streams.telemetry import setup
from dart_streams.telemetry.spans import ActiveSpan
from opentelemetry import metrics
config = parse({"run": {"state_dir": sys.argv[1], "id": "r"}, "telemetry": {"sampling": 1.0}})
setup.start(config, "env-0")
metrics.get_meter("test").create_counter("count").add(3)
with ActiveSpan("span"):
    pass
setup.stop()
"""


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these variables of OpenTelemetry alone."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environ = clean | variables | {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, check=False)


def measure(folder: Path, **variables: str) -> tuple[str, int, int]:
    """Run a process that measures something; return its log, and how many metrics and spans it has written."""
    done = run("-c", PROGRAM, str(folder), **variables)
    assert done.returncode == 0, done.stderr
    counts = [
        sum(len(file.read_text().splitlines()) for file in folder.glob(f"runs/r/{kind}/*.jsonl"))
        for kind in ("metrics", "traces")
    ]
    return done.stderr, counts[0], counts[1]


def test_a_disabled_sdk_is_said_at_the_start(tmp_path: Path):
    log, measured, _ = measure(tmp_path, OTEL_SDK_DISABLED="true")
    assert measured == 0
    (line,) = [json.loads(text) for text in log.splitlines()]
    assert (line["event"], line["level"]) == ("nothing is measured", "warning")
    assert "OTEL_SDK_DISABLED is true in the environment" in line["reason"]


def test_variables_of_other_programs_cost_a_run_no_metrics_and_no_spans(tmp_path: Path):
    """All of those at once that the SDK, or a distribution of it, reads when it sets itself up."""
    others = (
        "TRACES_SAMPLER=always_off METRICS_EXPORTER=none TRACES_EXPORTER=none SERVICE_NAME=other SDK_DISABLED=false "
        "RESOURCE_ATTRIBUTES=garbage,,=% EXPORTER_OTLP_ENDPOINT=nowhere METRIC_EXPORT_TIMEOUT=soon PROPAGATORS=garbage "
        "METRICS_EXEMPLAR_FILTER=garbage BSP_EXPORT_TIMEOUT=soon SPAN_ATTRIBUTE_COUNT_LIMIT=100"
    )
    log, measured, spans = measure(tmp_path, **dict(f"OTEL_{other}".split("=", 1) for other in others.split()))
    assert measured and spans == 1
    assert "nothing is measured" not in log


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "set it to a whole number, 0 or more, or unset it"),
        ("OTEL_PYTHON_METER_PROVIDER", "which disables telemetry: unset it"),
    ],
)
def test_a_variable_that_crashes_the_sdk_is_refused_by_its_name(name: str, advice: str):
    done = run("-m", "console.cli", "run", "--help", **{name: "garbage"})
    assert done.returncode == ConfigError.exit_code
    assert f"{name} is 'garbage' in the environment" in done.stderr
    assert advice in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["garbage", "0", "-5", "inf", "nan", "1e300", "2 s"])
def test_a_time_between_exports_that_is_none_is_refused(text: str):
    with pytest.raises(
        ConfigError, match=r"OTEL_METRIC_EXPORT_INTERVAL is .*: set it to milliseconds, 1 to 3600000, or"
    ):
        check_environment({"OTEL_METRIC_EXPORT_INTERVAL": text})


def test_a_time_between_exports_is_taken():
    assert metrics_interval_ms({"OTEL_METRIC_EXPORT_INTERVAL": " 500 "}) == 500
    assert metrics_interval_ms({"OTEL_METRIC_EXPORT_INTERVAL": ""}) == metrics_interval_ms({}) == DEFAULT_INTERVAL_MS


@given(st.sampled_from(COUNTS), st.text(max_size=6))
def test_a_limit_is_a_whole_number_or_refused(name: str, text: str):
    whole = text.strip().isascii() and text.strip().isdecimal()
    if whole or not text.strip():
        check_environment({name: text})
    else:
        with pytest.raises(ConfigError, match=name):
            check_environment({name: text})


@pytest.mark.parametrize("text", ["Bearer SECRET", "a=b;SECRET", 'a="SECRET"', "a=b,=SECRET", "a=é SECRET"])
def test_a_header_that_the_sdk_would_skip_is_refused_unread(text: str):
    with pytest.raises(ConfigError, match=r"header [12] of OTEL_EXPORTER_OTLP_HEADERS") as refused:
        check_environment({"OTEL_EXPORTER_OTLP_HEADERS": text})
    assert "SECRET" not in str(refused.value)


@given(st.sampled_from(HEADERS), st.text('abAB09=%20 ,;"\\!~é\t', max_size=12))
def test_headers_are_refused_where_the_sdk_skips_one(name: str, text: str):
    given_headers = [header for header in text.strip().split(",") if header.strip(" \t")]
    try:
        check_environment({name: text})
    except ConfigError:
        assert any(not parse_env_headers(header, liberal=True) for header in given_headers)
    else:
        assert all(parse_env_headers(header, liberal=True) for header in given_headers)


@pytest.mark.parametrize(("text", "disabled"), [("true", True), (" TRUE ", True), ("false", False), ("1", False)])
def test_only_true_disables_the_sdk(text: str, disabled: bool):
    assert bool(disabled_reason({"OTEL_SDK_DISABLED": text})) is disabled
    assert not disabled_reason({})
