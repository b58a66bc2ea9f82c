"""When a dead process is started again: exponential back-off, and giving up. Pure."""

import signal

import msgspec

from dart_streams.errors import AccessRefused, UserError

QUICK_S = 30.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 15.0
QUICK_DEATHS = 5
FATAL_CODES = (UserError.exit_code, AccessRefused.exit_code)


class Deaths(msgspec.Struct, frozen=True):
    """How often in a row a process has died quickly."""

    quick: int = 0


def after_death(deaths: Deaths, lived_s: float, code: int) -> tuple[Deaths, float | None]:
    """Return the new count and the seconds until the next start, None to give up.

    A life of at least ``QUICK_S`` starts the count anew. An error that the user must correct is not tried again.
    """
    quick = 1 if lived_s >= QUICK_S else deaths.quick + 1
    if code in FATAL_CODES or quick >= QUICK_DEATHS:
        return Deaths(quick), None
    return Deaths(quick), min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (quick - 1))


def explain(code: int) -> str:
    """Describe how a process ended; ``code`` above 128 stands for a signal."""
    if code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return "ended by itself (exit code 0)" if code == 0 else f"exit code {code}"
