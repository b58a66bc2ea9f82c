"""Passes requests on to tools that check no Host, if they name this machine. Usage: ``host_gate.py PORT=URL...``.

A web page in a browser of this machine can bind its own name to 127.0.0.1 (DNS rebinding). It would read Jaeger and
kafka-ui, which ask for no password.
"""

import asyncio
import sys
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, web
from yarl import URL

OWN = frozenset({"127.0.0.1", "::1", "localhost"})
PER_CONNECTION = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
"""Headers that are of one connection; aiohttp sets those of its own."""
SESSION = web.AppKey("session", ClientSession)
TIMEOUT = ClientTimeout(total=None, sock_connect=10)


def gate(target: str) -> web.Application:
    """Return the application that passes requests to this machine's own names on to a target."""

    async def serve(application: web.Application):
        settings = {"auto_decompress": False, "cookie_jar": DummyCookieJar(), "timeout": TIMEOUT}
        async with ClientSession(**settings) as application[SESSION]:
            yield

    async def answer(request: web.Request) -> web.StreamResponse:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if urlsplit(f"//{host}").hostname not in OWN or origin not in (None, f"http://{host}"):
            return web.Response(status=421, text="open this page at 127.0.0.1 or localhost")
        try:
            return await pass_on(request)
        except ClientError as error:
            return web.Response(status=502, text=f"{target} does not answer: {error}")

    async def pass_on(request: web.Request) -> web.StreamResponse:
        address, body = URL(target + request.raw_path, encoded=True), await request.read()
        sent = request.app[SESSION].request(
            request.method, address, headers=kept(request.headers), data=body or None, allow_redirects=False
        )
        async with sent as answered:
            response = web.StreamResponse(status=answered.status, headers=kept(answered.headers))
            await response.prepare(request)
            async for part in answered.content.iter_any():
                await response.write(part)
            return response

    application = web.Application()
    application.cleanup_ctx.append(serve)
    application.router.add_route("*", "/{path:.*}", answer)
    return application


def kept(headers) -> list[tuple[str, str]]:
    """Return the headers that are passed on."""
    return [(name, value) for name, value in headers.items() if name.lower() not in PER_CONNECTION]


async def main(gates: list[str]) -> None:
    """Serve each gate until the process is ended."""
    for port, _, target in (given.partition("=") for given in gates):
        runner = web.AppRunner(gate(target), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", int(port)).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
