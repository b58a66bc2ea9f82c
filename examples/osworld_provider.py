"""A provider for OSWorld's DesktopEnv: each reset leases a fresh desktop of `dart-streams worker desktops`.

Copy this file next to OSWorld, set DART_DESKTOPS to the address of the lease server (`ask_token = false`), and either
call :func:`register` and use ``DesktopEnv(provider_name="dart_streams")``, or run a script of OSWorld unchanged:

    DART_DESKTOPS=http://127.0.0.1:41001 python osworld_provider.py run.py --provider_name docker

Scripts accept OSWorld's names only, so ``docker`` means these desktops there. It needs OSWorld's package only.
"""

import contextlib
import functools
import json
import os
import runpy
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from desktop_env import desktop_env
from desktop_env.providers.base import Provider, VMManager

NAME = "dart_streams"
ADDRESS = "DART_DESKTOPS"
TTL_S, WAIT_S, REQUEST_S = 60.0, 30.0, 180.0
NONE_FREE = 503
VNC_PORT = 0
"""Desktops have no VNC; OSWorld expects a number."""


class Lease:
    """A leased desktop, renewed by a thread, so that it ends with this process."""

    def __init__(self, server: str, until: float) -> None:
        """Wait for a free desktop; raise TimeoutError if there is none in time."""
        self.server = server
        while True:
            try:
                self.granted = ask(server, "POST", "/leases", {"ttl_s": TTL_S, "wait_s": WAIT_S, "as_osworld": True})
                break
            except urllib.error.HTTPError as error:
                if error.code != NONE_FREE:
                    raise
                if time.monotonic() > until:
                    raise TimeoutError(f"no desktop of {server} is free") from None
        self.ended = threading.Event()
        threading.Thread(target=self._renew, daemon=True).start()

    @property
    def address(self) -> str:
        """Host and ports in OSWorld's order: server, browser, VNC, VLC."""
        parts, ports = urlsplit(self.granted["url"]), self.granted
        return f"{parts.hostname}:{parts.port}:{ports['chromium_port']}:{VNC_PORT}:{ports['vlc_port']}"

    def release(self) -> None:
        """Give the desktop back; it is removed."""
        self.ended.set()
        ask(self.server, "DELETE", f"/leases/{self.granted['id']}")

    def _renew(self) -> None:
        while not self.ended.wait(self.granted["ttl_s"] / 3):
            with contextlib.suppress(OSError):
                ask(self.server, "POST", f"/leases/{self.granted['id']}/renew")


class DesktopProvider(Provider):
    """OSWorld's operations on a machine, by leases."""

    def __init__(self, wait_s: float = 600.0) -> None:
        super().__init__()
        self.wait_s = wait_s
        self.lease: Lease | None = None

    def start_emulator(self, path_to_vm: str, *_: Any, **__: Any) -> None:
        """Lease a desktop unless one is held."""
        if self.lease is None:
            self.lease = Lease(path_to_vm, time.monotonic() + self.wait_s)

    def get_ip_address(self, path_to_vm: str) -> str:
        """Return the address of the leased desktop."""
        assert self.lease is not None, f"no desktop of {path_to_vm} is leased"
        return self.lease.address

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        """Refuse: a desktop has no snapshots, and each lease is fresh."""
        raise NotImplementedError(f"{snapshot_name}: desktops of {path_to_vm} have no snapshots")

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """Release the desktop; OSWorld then starts a fresh one."""
        self.stop_emulator(path_to_vm)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str, *_: Any, **__: Any) -> None:
        """Release the desktop."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


class DesktopManager(VMManager):
    """OSWorld's register of machines, which the lease server keeps."""

    def get_vm_path(self, **_: Any) -> str:
        """Return the lease server's address, which stands for a machine's path."""
        if not os.environ.get(ADDRESS):
            raise ValueError(f"set {ADDRESS} to the address that `dart-streams worker desktops` prints as leases")
        return os.environ[ADDRESS]

    def initialize_registry(self, **_: Any) -> None:
        """Do nothing."""

    add_vm = delete_vm = occupy_vm = check_and_clean = initialize_registry

    def list_free_vms(self, **_: Any) -> list[str]:
        """Return the lease server's address."""
        return [self.get_vm_path()]


def register(*names: str) -> None:
    """Let DesktopEnv take these provider names, or ``dart_streams``."""
    begin, create = desktop_env.DesktopEnv.__init__, desktop_env.create_vm_manager_and_provider

    @functools.wraps(begin)
    def initialize(self: Any, provider_name: str = "vmware", *given: Any, **named: Any) -> None:
        if provider_name not in (names or (NAME,)):
            begin(self, provider_name, *given, **named)
            return
        desktop_env.create_vm_manager_and_provider = lambda *_, **__: (DesktopManager(), DesktopProvider())
        try:
            # OSWorld takes its own names only; machines of this one begin clean and have ports, as desktops do.
            begin(self, "docker", *given, **named)
        finally:
            desktop_env.create_vm_manager_and_provider = create

    desktop_env.DesktopEnv.__init__ = initialize


def ask(server: str, method: str, path: str, body: "dict[str, Any] | None" = None) -> Any:
    """Send a request to the lease server; return its JSON."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(server.rstrip("/") + path, data, method=method)
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        return json.loads(answer.read() or b"null")


if __name__ == "__main__":
    register(NAME, "docker")
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
