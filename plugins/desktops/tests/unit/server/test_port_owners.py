"""Who holds the client's end of a connection, by the kernel's table and by the kernel itself."""

import contextlib
import re
import socket
import subprocess
import sys

import pytest

from dart_desktops.server.ports import CONNECTION_TABLE, owner_of
from tests.waiting import wait_until

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
CLIENT, SERVER = ("127.0.0.1", 0x9C40), ("127.0.0.1", 0xA0F1)
STRANGER = 65534


def row(uid: int, inode: int, remote: int = 0xA0F1, state: str = "01") -> str:
    """Return the table's row of a connection from the client's port."""
    ends = f"0100007F:9C40 0100007F:{remote:04X}"
    return f"   1: {ends} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0 20 4 0 10 -1"


@pytest.mark.parametrize(
    ("rows", "owner"),
    [
        ([row(1000, 7)], 1000),
        ([row(0, 7)], 0),
        ([], None),
        ([row(0, 0, state="04")], None),
        ([row(0, 0, remote=0x1F90, state="06"), row(1000, 7)], 1000),
        ([row(0, 9, remote=0x1F90), row(1000, 7)], 1000),
    ],
    ids=["a user", "root", "nobody", "an ended process", "an ended connection elsewhere", "a connection elsewhere"],
)
def test_the_owner_is_that_of_both_ends_and_of_a_living_process(rows, owner):
    assert owner_of(CLIENT, SERVER, "\n".join([HEAD, *rows])) == owner


def test_a_stranger_that_has_left_is_not_taken_for_root():
    program = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).send(b'x')"
    user = ["setpriv", f"--reuid={STRANGER}", "--clear-groups"]
    with contextlib.suppress(FileNotFoundError), socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run([*user, sys.executable, "-c", program, str(listener.getsockname()[1])], check=False)
        if done.returncode == 0:
            connection, client = listener.accept()
            with connection:
                ended = re.compile(f":{client[1]:04X} .* 0 0 ")
                wait_until(lambda: ended.search(CONNECTION_TABLE.read_text()), "the kernel lists the end of a process")
                assert owner_of(client, connection.getsockname(), CONNECTION_TABLE.read_text()) is None
                return
    pytest.skip("needs setpriv, and root to be another user")
