"""What OpenTelemetry's own environment variables do to a process: said at its start, or refused if they mean nothing.

The SDK itself reads them: it is silent about some, and ends a process with a traceback for others. Pure.
"""

import math
from collections.abc import Mapping

from dart_streams.errors import ConfigError

DISABLED = "OTEL_SDK_DISABLED"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
EVERY_MS = 2000.0
"""Milliseconds between exports of metrics, unless :data:`INTERVAL` says another time. Reports draw a point for each."""
LONGEST_MS = 3_600_000.0
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
PROVIDERS = ("OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_TRACER_PROVIDER")
"""With these an object of somebody else takes the place of the one that writes a run's metrics or spans."""


def metrics_every_ms(environ: Mapping[str, str]) -> float:
    """Return the milliseconds between exports of metrics; raise ConfigError if the environment's are no such time."""
    text = environ.get(INTERVAL, "").strip()
    try:
        every_ms = float(text or EVERY_MS)
    except ValueError:
        every_ms = math.nan
    if not 1.0 <= every_ms <= LONGEST_MS:
        raise ConfigError(setting_error(INTERVAL, text, f"milliseconds, 1 to {LONGEST_MS:.0f}"))
    return every_ms


def refuse_wrong(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a variable with which the SDK would end the process."""
    metrics_every_ms(environ)
    for name in COUNTS:
        text = environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdecimal()):
            raise ConfigError(setting_error(name, text, "a whole number, 0 or more"))
    for name in PROVIDERS:
        if text := environ.get(name, ""):
            raise ConfigError(f"{name} is {text[:100]!r} in the environment, which would measure nothing: unset it")


def setting_error(name: str, text: str, wanted: str) -> str:
    """Return the error of a variable."""
    return f"{name} is {text[:100]!r} in the environment: set it to {wanted}, or unset it"


def disabled_reason(environ: Mapping[str, str]) -> str:
    """Return why a process measures nothing; empty if it does."""
    if environ.get(DISABLED, "").strip().lower() != "true":
        return ""
    return (
        f"{DISABLED} is true in the environment, so no process writes metrics: the report has no shares of slot time, "
        f"no times of requests and steps. Unset it to have them"
    )
