"""The one policy for calls to a service that may be away: the same pause between tries, until a deadline."""

from collections.abc import Callable
from typing import Any

from tenacity import RetryCallState, retry_if_exception, wait_fixed

from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable


def until(
    deadline: Deadline,
    pause_s: float,
    *,
    retryable: Callable[[BaseException], bool],
    waiting: Callable[[BaseException], object],
    unavailable: Callable[[BaseException], ServiceUnavailable],
) -> dict[str, Any]:
    """Return the arguments of ``tenacity.Retrying`` or ``tenacity.AsyncRetrying``.

    ``waiting`` is called once, after the first failure; when the deadline has expired, the error that ``unavailable``
    returns is raised. An error that is not ``retryable`` is raised at once.
    """

    def before_sleep(state: RetryCallState) -> None:
        if state.attempt_number == 1:
            waiting(error_of(state))

    def give_up(state: RetryCallState) -> None:
        raise unavailable(error_of(state)) from None

    return {
        "stop": lambda _: deadline.expired,
        "wait": wait_fixed(pause_s),
        "retry": retry_if_exception(retryable),
        "before_sleep": before_sleep,
        "retry_error_callback": give_up,
    }


def error_of(state: RetryCallState) -> BaseException:
    """Return what the last try raised."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "tenacity calls these hooks after a failure only"
    return error
