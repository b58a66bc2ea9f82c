"""A company's proxy that opens TLS with certificates of its own authority, and prints the hosts it connects to.

Usage: ``python -m tests.compose.proxy ADDRESS FOLDER``, where the folder gets the authority's certificate, ``ca.pem``.
Prints its port, and then a host a line.
"""

import asyncio
import contextlib
import ssl
import subprocess
import sys
from pathlib import Path

AUTHORITY = "ca"
CHUNK = 65536
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
KEY_ID = "subjectKeyIdentifier=hash"
ISSUER_ID = "authorityKeyIdentifier=keyid"
PLAIN = "[req]\ndistinguished_name = name\n[name]\n"
"""A configuration of openssl that adds nothing of its own: the system's makes an authority of each certificate."""


def certify(folder: Path, name: str, *options: str) -> None:
    """Make a key and a certificate of it, ``NAME.key`` and ``NAME.pem``."""
    (folder / "plain.cnf").write_text(PLAIN)
    files = ("-config", f"{folder}/plain.cnf", "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem")
    extensions = [part for option in options for part in ("-addext", option)]
    issuer = () if name == AUTHORITY else ("-CA", f"{folder}/{AUTHORITY}.pem", "-CAkey", f"{folder}/{AUTHORITY}.key")
    command = ["openssl", "req", "-x509", *KEY, *files, *issuer, "-subj", f"/CN={name}", "-days", "2", *extensions]
    subprocess.run(command, check=True, capture_output=True)


def make_authority(folder: Path) -> Path:
    """Make an authority, and return its certificate."""
    certify(folder, AUTHORITY, "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign", KEY_ID)
    return folder / f"{AUTHORITY}.pem"


def context_for(host: str, folder: Path) -> ssl.SSLContext:
    """Return what the proxy shows for a host: a certificate of its authority."""
    if not (folder / f"{host}.pem").exists():
        certify(folder, host, "basicConstraints=critical,CA:FALSE", f"subjectAltName=DNS:{host}", KEY_ID, ISSUER_ID)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{host}.pem", folder / f"{host}.key")
    return context


class Proxy:
    """Answers CONNECT; what is asked over it goes on to the host over TLS again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certifying = asyncio.Lock()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            request = await reader.readuntil(b"\r\n\r\n")
            method, target, *_ = request.decode().split()
            host, _, port = target.rpartition(":")
            if method != "CONNECT":
                writer.write(b"HTTP/1.1 405 CONNECT only\r\n\r\n")
                return
            sys.stdout.write(f"{host}\n")
            sys.stdout.flush()
            async with self.certifying:
                context = await asyncio.to_thread(context_for, host, self.folder)
            there = await asyncio.open_connection(host, int(port), ssl=ssl.create_default_context())
            with contextlib.closing(there[1]):
                writer.write(b"HTTP/1.1 200 connected\r\n\r\n")
                await writer.start_tls(context)
                async with asyncio.TaskGroup() as both:
                    both.create_task(pass_on(reader, there[1]))
                    both.create_task(pass_on(there[0], writer))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until it ends, and then end the other side, so that both do."""
    with contextlib.closing(writer), contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


async def main(address: str, folder: Path) -> None:
    make_authority(folder)
    server = await asyncio.start_server(Proxy(folder).serve, address, 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
