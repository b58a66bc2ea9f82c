"""Checks of OpenTelemetry's environment variables before the SDK reads them. Pure.

The SDK ignores some invalid values silently and ends the process with a traceback for others.
"""

import math
import re
from collections.abc import Mapping

from dart_streams.errors import ConfigError

DISABLED = "OTEL_SDK_DISABLED"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_INTERVAL_MS = 2000.0
"""Default interval between exports of metrics in milliseconds; reports draw a point for each."""
MAX_INTERVAL_MS = 3_600_000.0
COUNTS = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)
"""Limits of spans."""
HEADER = re.compile(r"[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")
"""A header as the exporters accept it, of the characters that they accept."""
HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Headers of requests to a collector, ``name=value`` with commas between; they may hold a token."""
PROVIDERS = ("OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_TRACER_PROVIDER")
"""Variables that replace the providers that write a run's metrics and spans."""


def metrics_interval_ms(environ: Mapping[str, str]) -> float:
    """Return the interval between exports of metrics in milliseconds; raise ConfigError for an invalid one."""
    text = environ.get(INTERVAL, "").strip()
    try:
        interval_ms = float(text or DEFAULT_INTERVAL_MS)
    except ValueError:
        interval_ms = math.nan
    if not 1.0 <= interval_ms <= MAX_INTERVAL_MS:
        raise ConfigError(setting_error(INTERVAL, text, f"milliseconds, 1 to {MAX_INTERVAL_MS:.0f}"))
    return interval_ms


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a value with which the SDK would end the process."""
    metrics_interval_ms(environ)
    for name in COUNTS:
        text = environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdecimal()):
            raise ConfigError(setting_error(name, text, "a whole number, 0 or more"))
    for name in HEADERS:
        refuse_headers(name, environ.get(name, ""))
    for name in PROVIDERS:
        if text := environ.get(name, ""):
            raise ConfigError(f"{name} is {text[:100]!r} in the environment, which disables telemetry: unset it")


def refuse_headers(name: str, text: str) -> None:
    """Raise ConfigError for a header that the SDK would skip, without its value: it may be a token."""
    for number, header in enumerate(filter(None, re.split(r"[ \t]*,[ \t]*", text.strip())), start=1):
        if not HEADER.fullmatch(header):
            raise ConfigError(
                f"header {number} of {name} in the environment is not name=value: separate headers by commas, and "
                "write a comma, a semicolon, a quote or a backslash in a value as %2C, %3B, %22 or %5C"
            )


def setting_error(name: str, text: str, wanted: str) -> str:
    """Return the error text of a variable."""
    return f"{name} is {text[:100]!r} in the environment: set it to {wanted}, or unset it"


def disabled_reason(environ: Mapping[str, str]) -> str:
    """Return the reason if the process writes no metrics, else an empty text."""
    if environ.get(DISABLED, "").strip().lower() != "true":
        return ""
    return (
        f"{DISABLED} is true in the environment, so no process writes metrics: the report will lack slot time, "
        "request times and step times. Unset it to have them"
    )
