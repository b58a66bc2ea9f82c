"""Leases as the check of tasks takes them, from a server that answers over real HTTP what the test says."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from workers.env.backends.osworld import desktop_leases
from workers.env.backends.osworld.desktop_leases import DesktopLeases
from workers.env.environment import EnvironmentFault


class Leasing:
    """Answers requests for leases with these statuses in turn, and keeps what was asked."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[str, str, str]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path, request.headers.get("Authorization", "")))
        if request.method == "DELETE":
            return web.Response(status=204)
        status = self.statuses.pop(0)
        granted = {"id": "one", "url": f"{self.url}/desktop", "token": "of the desktop"}
        return web.json_response(granted if status == 201 else {"error": "2 of 2 are leased"}, status=status)


@contextlib.asynccontextmanager
async def serving(leasing: Leasing) -> AsyncIterator[Leasing]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", leasing.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    leasing.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield leasing
    await runner.cleanup()


@pytest.mark.parametrize(("token", "header", "own"), [("secret", "Bearer secret", "of the desktop"), ("", "", "")])
async def test_a_desktop_is_leased_by_a_token_of_its_own_and_given_back(token, header, own):
    async with serving(Leasing(503, 201)) as leasing:
        async with DesktopLeases(leasing.url + "/", token).machine() as machine:
            assert (machine.endpoint.url, machine.endpoint.token) == (f"{leasing.url}/desktop", own)
            assert leasing.asked == [("POST", "/leases", header)] * 2
        assert leasing.asked[2:] == [("DELETE", "/leases/one", header)]


async def test_a_desktop_is_given_back_also_after_a_fault():
    async with serving(Leasing(201)) as leasing:
        with pytest.raises(EnvironmentFault, match="its own"):
            async with DesktopLeases(leasing.url).machine():
                raise EnvironmentFault("its own")
        assert leasing.asked[-1][:2] == ("DELETE", "/leases/one")


@pytest.mark.parametrize(
    ("statuses", "why"), [((401,), "leases no desktop: 401"), ((503, 503), "503: .*2 of 2 are leased")]
)
async def test_a_server_that_leases_none_is_a_fault_with_its_reason(statuses, why):
    async with serving(Leasing(*statuses)) as leasing:
        with pytest.raises(EnvironmentFault, match=why):
            async with DesktopLeases(leasing.url, wait_s=2 * desktop_leases.WAIT_S).machine():
                pass
        assert len(leasing.asked) == len(statuses)


async def test_a_server_that_is_not_there_is_named():
    with pytest.raises(EnvironmentFault, match=r"http://127\.0\.0\.1:1: "):
        async with DesktopLeases("http://127.0.0.1:1").machine():
            pass
