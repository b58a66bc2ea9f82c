"""Expected errors for the user, and the length of a reason within an event."""

MAX_REASON = 4000
"""Characters of a reason in an event or a dead letter; its producer cuts longer ones."""


class UserError(Exception):
    """An error the user can fix: the text says what was wrong, where, and what to do.

    The command line prints it and exits with ``exit_code``; only other exceptions show a traceback.
    """

    exit_code = 2


class ConfigError(UserError):
    """A configuration or task file that cannot be used."""


class ServiceUnavailable(UserError):
    """A broker, database, browser or model did not answer within its deadline."""

    exit_code = 3


class AccessRefused(UserError):
    """A service rejects this client, or is not trusted: a retry does not help."""

    exit_code = 5
