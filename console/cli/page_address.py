"""The address of the page's server with its tokens: printed, written for scripts, and read by the next start."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from console.cli.output import note, show_json
from dart_streams.errors import UserError
from dart_streams.socket_folder import is_private

MIN_TOKEN = 16
"""Characters that the token of a file has at least."""


class PageAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of the page: ``url`` contains the token, which scripts send as their bearer.

    ``feedback_url`` and ``feedback_token`` are of viewers who may give feedback, and left out if none may.
    """

    url: str
    address: str
    token: str
    feedback_url: str = ""
    feedback_token: str = ""


def read_address(file: Path | None) -> PageAddress:
    """Return an earlier start's address, for open browsers, if only this user could write it, else an empty one."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        if file is not None and is_private(file):
            return msgspec.json.decode(file.read_bytes(), type=PageAddress)
    return PageAddress(url="", address="", token="")


def read_token(file: Path | None, option: str = "--token-file") -> str:
    """Return the token of a file, empty without one; raise :class:`UserError` if it is missing or short."""
    if file is None:
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option} {file} can't be read: {getattr(error, 'strerror', error)}") from None
    if len(token) < MIN_TOKEN:
        raise UserError(f"{option} {file}: a token needs {MIN_TOKEN} characters, such as `openssl rand -hex 24` gives")
    return token


def announce(address: PageAddress, file: Path | None, *, as_json: bool) -> None:
    """Print the address, and write it into a file for this user only; raise :class:`UserError` if that fails."""
    if file is not None:
        fresh = file.with_suffix(".new")
        try:
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(msgspec.json.encode(address))
            fresh.replace(file)
        except OSError as error:
            raise UserError(f"--address-file {file} can't be written: {error.strerror}") from None
    if as_json:
        show_json(address)
    elif file is None:
        note(f"watch it at {address.url}")
        if address.feedback_url:
            note(f"give feedback at {address.feedback_url}")
