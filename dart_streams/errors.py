"""The one base class of errors that are expected and meant for the person at the terminal."""


class UserError(Exception):
    """Something the user can mend: says what was wrong, where, and what to do.

    The command line prints its text and exits with ``exit_code``; only other exceptions show a traceback.
    """

    exit_code = 2


class ConfigError(UserError):
    """A configuration or task file that cannot be used."""


class ServiceUnavailable(UserError):
    """A broker, database, browser or model that did not answer within its deadline."""

    exit_code = 3


class AccessRefused(UserError):
    """A service that is there, and does not let this side in, or is not to be trusted: trying again does not help."""

    exit_code = 5
