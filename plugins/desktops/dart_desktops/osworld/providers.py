"""Providers of machines: a list, a lease server, or the user's programs. Each episode holds a lease of one machine."""

import asyncio
import fcntl
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import IO, Protocol

import msgspec
import structlog

from dart_desktops.osworld.machine import MachineEndpoint, bearer_headers
from dart_desktops.osworld.sidecar import end_process
from dart_streams.config import Osworld
from dart_streams.connection.auth import read_secret
from dart_streams.deadline import Deadline
from dart_streams.errors import ConfigError
from dart_streams.socket_folder import is_private
from workers.env.backends.connection import Connection, StatusFault, excerpt
from workers.env.environment import EnvironmentFault

POLL_INTERVAL_S = 0.25
WAIT_S = 30.0
"""Time for which the lease server holds a request until a desktop is free."""
RELEASE_S = 30.0
GRACE_S = 10.0
"""Time in which a program that is late prints the machine that it has made, or removes it."""
PRINTED_BYTES = 2**20
RENEWALS = 3
"""Renewals of a lease within its lifetime."""
LOCKS = "dart-osworld-locks"

log = structlog.get_logger()


class HeldMachine:
    """A leased machine."""

    def __init__(self, endpoint: MachineEndpoint, give_back: Callable[[], Awaitable[object]]) -> None:
        self.endpoint = endpoint
        self._give_back: Callable[[], Awaitable[object]] | None = give_back

    async def release(self) -> None:
        """Give the machine back, once; never raises."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            await give_back()


class MachineProvider(Protocol):
    """Leases machines."""

    async def acquire(self, deadline: Deadline) -> HeldMachine:
        """Lease a machine exclusively; raise EnvironmentFault if none is free in time."""


def lease_token_of(settings: Osworld) -> str:
    """Return the token of the lease server, empty if it asks for none; raise ConfigError if it is missing."""
    if not settings.lease_token:
        return ""
    try:
        return read_secret(settings.lease_token, "env.osworld.lease_token")
    except ConfigError as error:
        raise ConfigError(f"{error}. `dart-streams worker desktops` writes it at its start: start that first") from None


def provider_of(settings: Osworld) -> MachineProvider:
    """Return the configured provider.

    Raises ConfigError unless exactly one is configured, and its machines are fresh in each episode.
    """
    configured = [name for name in ("machines", "lease_url", "acquire") if getattr(settings, name)]
    if len(configured) != 1:
        names = " and ".join(configured) or "none of them"
        raise ConfigError(f"[env.osworld] needs one of machines, lease_url and acquire; it has {names}")
    if settings.lease_url:
        token = lease_token_of(settings)
        return LeaseServerProvider(settings.lease_url, token, settings.lease_s, settings.call_timeout_s)
    if settings.acquire:
        return ProgramProvider(settings.acquire, settings.release, settings.lease_s)
    if settings.fresh != "given":
        raise ConfigError(
            "env.osworld.machines: machines of a list are not reverted, so an episode would begin in the state that "
            'the previous one left. Use lease_url or acquire, which give fresh machines; or set fresh = "given" if '
            "another program reverts the machines between episodes"
        )
    return ListProvider(
        [
            MachineEndpoint(
                url=machine.url,
                token=read_secret(machine.token, "env.osworld.machines.token") if machine.token else "",
                chromium_port=machine.chromium_port,
                vlc_port=machine.vlc_port,
            )
            for machine in settings.machines
        ]
    )


class ListProvider:
    """Machines of a list; a locked file for each keeps two workers of this host from using the same one."""

    def __init__(self, endpoints: Sequence[MachineEndpoint], locks: Path | None = None) -> None:
        self.endpoints = endpoints
        self.locks = locks or Path(tempfile.gettempdir()) / f"{LOCKS}-{os.geteuid()}"

    async def acquire(self, deadline: Deadline) -> HeldMachine:
        """See :class:`MachineProvider`."""
        while True:
            for endpoint in self.endpoints:
                if (descriptor := self._locked(endpoint)) is not None:
                    return HeldMachine(endpoint, functools.partial(asyncio.to_thread, os.close, descriptor))
            if deadline.expired:
                raise EnvironmentFault(f"all {len(self.endpoints)} machines of env.osworld.machines are in use")
            await asyncio.sleep(min(POLL_INTERVAL_S, deadline.remaining_s))

    def _locked(self, endpoint: MachineEndpoint) -> int | None:
        """Return the descriptor that holds a machine's lock, None if it is in use; raise EnvironmentFault without."""
        self.locks.mkdir(mode=0o700, exist_ok=True)
        if not is_private(self.locks):
            raise EnvironmentFault(f"{self.locks} is not this user's own folder of mode 0700: remove it, or set TMPDIR")
        name = hashlib.sha256(endpoint.url.rstrip("/").encode()).hexdigest()[:32]
        descriptor = os.open(self.locks / name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


class LeaseGrant(msgspec.Struct, frozen=True):
    """Response of the lease server to a request for a desktop."""

    id: str
    url: str
    token: str
    ttl_s: float
    chromium_port: int = 0
    vlc_port: int = 0
    """Ports of DevTools and VLC; 0 of a lease server that forwards none."""

    def endpoint(self) -> MachineEndpoint:
        """Return the desktop's address."""
        ports = {name: port for name in ("chromium_port", "vlc_port") if (port := getattr(self, name))}
        return MachineEndpoint(url=self.url, token=self.token, **ports)


class LeaseServerProvider:
    """Fresh desktops of a lease server (``dart-streams worker desktops``), each renewed while it is held."""

    def __init__(self, url: str, token: str, lease_s: float, call_timeout_s: float) -> None:
        self.url = url
        self.token = token
        self.lease_s = lease_s
        self.call_timeout_s = call_timeout_s

    async def acquire(self, deadline: Deadline) -> HeldMachine:
        """See :class:`MachineProvider`; 503 leased nothing, so the request is repeated until the deadline."""
        while True:
            wait_s = min(WAIT_S, deadline.remaining_s)
            limit_s = self.call_timeout_s + wait_s
            try:
                async with self._connection() as connection:
                    body = {"ttl_s": self.lease_s, "wait_s": wait_s}
                    answer = await connection.send("POST", "/leases", limit_s=limit_s, json_body=body)
                break
            except StatusFault as fault:
                if fault.status != HTTPStatus.SERVICE_UNAVAILABLE or deadline.expired:
                    raise
            await asyncio.sleep(min(POLL_INTERVAL_S, deadline.remaining_s))
        granted: LeaseGrant = connection.decode("/leases", answer, LeaseGrant)
        renewing = asyncio.create_task(self._renew(granted))

        async def release() -> None:
            renewing.cancel()
            await self._ask("DELETE", f"/leases/{granted.id}", RELEASE_S)

        return HeldMachine(granted.endpoint(), release)

    async def _renew(self, granted: LeaseGrant) -> None:
        """Renew until cancelled or until the lease has ended; calls of the desktop then fail."""
        while True:
            await asyncio.sleep(granted.ttl_s / RENEWALS)
            if not await self._ask("POST", f"/leases/{granted.id}/renew", granted.ttl_s / RENEWALS):
                log.warning("lease lost", lease=granted.id, reason="it was not renewed in time")
                return

    async def _ask(self, method: str, path: str, limit_s: float) -> bool:
        """Send a request; return False if the lease has ended."""
        try:
            async with self._connection() as connection:
                await connection.send(method, path, limit_s=limit_s)
        except EnvironmentFault as fault:
            if isinstance(fault, StatusFault) and fault.status == HTTPStatus.NOT_FOUND:
                return False
            log.warning("lease server does not answer", request=method, reason=str(fault))
        return True

    def _connection(self) -> Connection:
        return Connection(self.url, self.call_timeout_s, bearer_headers(self.token))


class ProgramProvider:
    """Machines of two programs: one prints an endpoint as JSON (``url``, …), the other releases it.

    The printed text is passed on standard input, so that no command line contains a token.
    """

    def __init__(self, acquire: Sequence[str], release: Sequence[str], lease_s: float) -> None:
        self.acquire_command, self.release_command = acquire, release
        self.lease_s = lease_s

    async def acquire(self, deadline: Deadline) -> HeldMachine:
        """See :class:`MachineProvider`; what was printed is released if this fails or is cancelled."""
        with tempfile.TemporaryFile() as output:
            try:
                await self._run(self.acquire_command, b"", output, deadline)
                printed = os.pread(output.fileno(), PRINTED_BYTES, 0)
                endpoint = parse_endpoint(printed, self.acquire_command[0])
            except BaseException:
                await self._release(os.pread(output.fileno(), PRINTED_BYTES, 0))
                raise
        return HeldMachine(endpoint, functools.partial(self._release, printed))

    async def _release(self, printed: bytes) -> None:
        if not self.release_command or not printed.strip():
            return
        try:
            await self._run(self.release_command, printed, asyncio.subprocess.DEVNULL, Deadline(RELEASE_S))
        except EnvironmentFault as fault:
            log.warning("machine not released", reason=str(fault))

    async def _run(self, command: Sequence[str], stdin: bytes, output: IO[bytes] | int, deadline: Deadline) -> None:
        """Run a program to its end; raise EnvironmentFault if it fails or is ended at the deadline."""
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, "DART_LEASE_S": f"{self.lease_s:g}"}
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=output, stderr=pipe, start_new_session=True, env=environment
            )
        except OSError as error:
            raise EnvironmentFault(f"{command[0]} cannot be run: {error}") from None
        try:
            async with deadline.timeout():
                _, errors = await process.communicate(stdin)
        except TimeoutError:
            raise EnvironmentFault(f"{command[0]} did not end in time") from None
        finally:
            await end_process(process, GRACE_S)
        if process.returncode:
            raise EnvironmentFault(f"{command[0]} failed, exit code {process.returncode}: {excerpt(errors[-300:])}")


def parse_endpoint(printed: bytes, program: str) -> MachineEndpoint:
    """Return the machine that a program has printed; raise EnvironmentFault if it is none."""
    try:
        fields = json.loads(printed)
        known = {name: fields[name] for name in MachineEndpoint.__struct_fields__ if name in fields}
        return msgspec.convert(known, MachineEndpoint)
    except (ValueError, TypeError, RecursionError) as error:
        raise EnvironmentFault(f"env.osworld.acquire: {program} prints no machine as JSON: {error}") from None
