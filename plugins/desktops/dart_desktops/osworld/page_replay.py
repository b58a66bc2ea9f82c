"""Replay of recorded pages inside a desktop: its own server, to which the browser resolves the recorded hosts.

The desktop keeps no route to a network. The browser accepts the certificate of this run by the digest of its key, which
other programs do not.
"""

import asyncio
import base64
import functools
import hashlib
import subprocess
from typing import Any

import msgspec

from dart_desktops.desktop.command_line import BROWSER_FLAGS, GUEST
from dart_desktops.desktop.guest import page_server
from dart_desktops.osworld.machine import Machine, run_command
from dart_desktops.osworld.pages import WebPages, host_of
from dart_desktops.osworld.tasks import OsworldTask
from workers.env.environment import EnvironmentFault

FOLDER = "/run/pages"
SERVE = f"cd {GUEST} && exec /usr/bin/python3 -E -s -m {page_server.__name__} {FOLDER}"
CREATE = (
    *("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-days", "365", "-subj", "/CN=recorded pages", "-keyout", "-", "-out", "-"),
)
PUBLIC_KEY = ("openssl", "pkey", "-pubout", "-outform", "DER")
CREATE_S = 30.0


async def serve_pages(machine: Machine, pages: WebPages, task: OsworldTask) -> None:
    """Start the server of a task's pages on a fresh desktop; raise EnvironmentFault if that fails."""
    responses = await asyncio.to_thread(pages.responses_for, task)
    hosts = tuple(sorted({host_of(response["url"]) for response in responses}))
    certificate = await asyncio.to_thread(make_certificate, hosts)
    await machine.upload(f"{FOLDER}/{page_server.PAGES}", msgspec.json.encode(responses))
    await machine.upload(f"{FOLDER}/{page_server.CERTIFICATE}", certificate)
    await run_command(machine, SERVE, "the server of recorded pages does not start", shell=True)
    await machine.upload(BROWSER_FLAGS, "\n".join(browser_flags(hosts, certificate)).encode() + b"\n")


def browser_flags(hosts: tuple[str, ...], certificate: bytes) -> list[str]:
    """Return the flags by which a browser finds the recorded hosts at the server, and accepts its certificate."""
    rules = ",".join(f"MAP {host} 127.0.0.1:{page_server.PORT}" for host in hosts)
    return [f"--host-resolver-rules={rules}", f"--ignore-certificate-errors-spki-list={key_digest(certificate)}"]


@functools.lru_cache(maxsize=256)
def make_certificate(hosts: tuple[str, ...]) -> bytes:
    """Return a new certificate of these hosts with its key; raise EnvironmentFault without openssl."""
    names = ",".join(f"DNS:{host}" for host in hosts) or "DNS:localhost"
    return run_openssl([*CREATE, "-addext", f"subjectAltName={names}"])


def key_digest(certificate: bytes) -> str:
    """Return the digest of a certificate's public key in the form of the browser's flag."""
    return base64.b64encode(hashlib.sha256(run_openssl(PUBLIC_KEY, certificate)).digest()).decode()


def run_openssl(command: Any, stdin: bytes = b"") -> bytes:
    """Return the output of openssl; raise EnvironmentFault if it fails."""
    try:
        return subprocess.run(command, input=stdin, capture_output=True, check=True, timeout=CREATE_S).stdout
    except subprocess.CalledProcessError as error:
        raise EnvironmentFault(f"openssl makes no certificate: {error.stderr.decode()[-200:].strip()}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentFault(f"recorded pages need openssl: {error}; `make osworld` installs it") from None
