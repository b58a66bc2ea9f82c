"""The retry policy for unavailable services: a fixed pause between tries, until a deadline."""

from collections.abc import Callable
from typing import Any

import structlog
from tenacity import RetryCallState, retry_if_exception, wait_fixed

from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable

log = structlog.get_logger()


def retry_arguments(
    deadline: Deadline,
    pause_s: float,
    service: str,
    retryable: Callable[[BaseException], bool],
    unavailable: Callable[[BaseException], ServiceUnavailable],
) -> dict[str, Any]:
    """Return the arguments of ``tenacity.Retrying`` or ``tenacity.AsyncRetrying``.

    The first failure is logged, and an error that is not ``retryable`` is raised at once. At the deadline,
    ``unavailable`` turns the last failure into the raised error.
    """

    def log_first(state: RetryCallState) -> None:
        if state.attempt_number == 1:
            reason, left_s = repr(last_failure(state)).splitlines()[0][:200], round(deadline.remaining_s, 1)
            log.warning(f"waiting for the {service}", reason=reason, at_most_s=left_s)

    def give_up(state: RetryCallState) -> None:
        raise unavailable(last_failure(state)) from None

    return {
        "stop": lambda _: deadline.expired,
        "wait": wait_fixed(pause_s),
        "retry": retry_if_exception(retryable),
        "after": log_first,
        "retry_error_callback": give_up,
    }


def last_failure(state: RetryCallState) -> BaseException:
    """Return the error of the last try."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "tenacity calls these hooks after a failure only"
    return error
