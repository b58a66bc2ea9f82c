"""Leases of desktops, from a server that gives scripted responses over HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from dart_desktops.osworld import providers
from dart_desktops.osworld.machine import MachineEndpoint
from dart_desktops.osworld.providers import LeaseServerProvider, ListProvider, ProgramProvider, provider_of
from dart_streams.config import Osworld
from dart_streams.deadline import Deadline
from dart_streams.errors import ConfigError
from tests.answering import answering
from tests.waiting import wait_until
from workers.env.environment import EnvironmentFault


class Leasing:
    """Responds to requests for leases with these statuses in turn, and records the requests."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[str, str, str]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path, request.headers.get("Authorization", "")))
        if request.method == "DELETE":
            return web.Response(status=204)
        status = self.statuses.pop(0)
        granted = {"id": "one", "url": f"{self.url}/desktop", "token": "of the desktop", "ttl_s": 60.0}
        return web.json_response(granted if status == 201 else {"error": "2 of 2 are leased"}, status=status)


@contextlib.asynccontextmanager
async def serving(leasing: Leasing) -> AsyncIterator[Leasing]:
    async with answering(leasing.answer) as leasing.url:
        yield leasing


@pytest.mark.parametrize(("token", "header"), [("secret", "Bearer secret"), ("", "")])
async def test_a_desktop_is_leased_and_released_once(token, header):
    async with serving(Leasing(503, 201)) as leasing:
        held = await LeaseServerProvider(leasing.url + "/", token, 60.0, 60.0).acquire(Deadline(60.0))
        assert (held.endpoint.url, held.endpoint.token) == (f"{leasing.url}/desktop", "of the desktop")
        assert leasing.asked == [("POST", "/leases", header)] * 2
        await held.release()
        assert leasing.asked[2:] == [("DELETE", "/leases/one", header)]


@pytest.mark.parametrize(
    ("statuses", "why"), [((401,), "/leases: status 401"), ((503, 503), "503: .*2 of 2 are leased")]
)
async def test_a_server_that_leases_none_is_a_fault_with_its_reason(statuses, why):
    async with serving(Leasing(*statuses)) as leasing:
        now = iter([*[0.0] * 5, *[60.0] * 20])
        with pytest.raises(EnvironmentFault, match=why):
            await LeaseServerProvider(leasing.url, "", 60.0, 60.0).acquire(Deadline(30.0, lambda: next(now)))
        assert len(leasing.asked) == len(statuses)


async def test_locks_are_made_in_a_folder_of_this_user_only(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    endpoints = [MachineEndpoint(url="http://127.0.0.1:1")]
    for name in ("link", "open"):
        with pytest.raises(EnvironmentFault, match=f"{name} is not this user's own folder of mode 0700"):
            await ListProvider(endpoints, tmp_path / name).acquire(Deadline(60.0))
    assert not list((tmp_path / "elsewhere").iterdir())
    held = await ListProvider(endpoints, tmp_path / "own").acquire(Deadline(60.0))
    await held.release()


def test_a_lease_server_that_was_not_started_has_written_no_token(tmp_path):
    settings = Osworld(lease_url="http://127.0.0.1:1", lease_token=f"file:{tmp_path}/desktops-0.token")
    with pytest.raises(ConfigError, match=r"lease_token: there is no file .*`dart-streams worker desktops` writes it"):
        provider_of(settings)
    (tmp_path / "desktops-0.token").write_text("secret")
    provider = provider_of(settings)
    assert isinstance(provider, LeaseServerProvider)
    assert provider.token == "secret"


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        ("trap 'echo a machine; exit 1' TERM; touch begun; sleep 60 & wait", "late"),
        ("trap 'echo a machine; exit 1' TERM; touch begun; sleep 60 & wait", "cancelled"),
        ("trap '' TERM; echo a machine; touch begun; sleep 60", "late"),
        ("echo a machine; touch begun; exit 1", "failed"),
    ],
)
async def test_what_a_program_has_made_is_released_however_it_ends(script, ending, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(providers, "GRACE_S", 0.1 if "''" in script else 60.0)
    commands = [["sh", "-c", f"cd {tmp_path}; {part}"] for part in (script, "cat > released")]
    deadline, bound = Deadline(None), asyncio.timeout(None)
    deadline.timeout = lambda: bound  # type: ignore[method-assign]
    acquiring = asyncio.create_task(ProgramProvider(*commands, 60.0).acquire(deadline))
    await asyncio.to_thread(wait_until, (tmp_path / "begun").exists)
    if ending == "late":
        bound.reschedule(0.0)
    elif ending == "cancelled":
        acquiring.cancel()
    with pytest.raises(asyncio.CancelledError if ending == "cancelled" else EnvironmentFault):
        await acquiring
    assert (tmp_path / "released").read_text() == "a machine\n"
