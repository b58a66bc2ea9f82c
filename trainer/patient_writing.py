"""Writing weights to a store that may be away: waited for with the reason, and an error that says what to do."""

import threading
from collections.abc import Callable
from typing import TypeVar

import structlog
from safetensors import SafetensorError

from dart_streams.deadline import Deadline
from dart_streams.errors import UserError
from dart_streams.policy.weight_storage import StorageUnreachable

STORE_TIMEOUT_S = 300.0
"""A store of weights may be away for this long, well within the time that ranks wait for each other."""
RETRY_INTERVAL_S = 5.0

Written = TypeVar("Written")

log = structlog.get_logger()


class VersionNotWritten(UserError):
    """Weights that could not be written to their URI; a trainer that resumes publishes them."""

    exit_code = 1


def write_patiently(write: Callable[[], Written], version: int, uri: str, stop: threading.Event) -> Written:
    """Return what ``write`` gives; while the store of the weights is away it is tried again, for :data:`AWAY_S`.

    Raises VersionNotWritten, with what to do, if the files of a version cannot be written.
    """
    deadline = Deadline(STORE_TIMEOUT_S)
    while True:
        try:
            return write()
        except StorageUnreachable as error:
            if deadline.expired or stop.is_set():
                raise VersionNotWritten(
                    f"weight version {version} can't be written: {error}. Started again, the trainer publishes these "
                    "weights as soon as the store is back"
                ) from error
            left_s = round(deadline.remaining_s)
            log.warning("waiting for the store of the weights", version=version, reason=str(error), left_s=left_s)
            stop.wait(RETRY_INTERVAL_S)
        except (OSError, SafetensorError) as error:
            raise VersionNotWritten(
                f"weight version {version} can't be written to {uri} ({error}): see that this place exists, can be "
                "written to and has room, and start the trainer again; it publishes these weights then"
            ) from error
