"""Nothing of the test's own engine stays on the machine, however it ends."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compose.own_engine import CGROUPS, RUN, missing, name_of
from tests.compose.stack import ROOT, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or bool(missing()), reason="an engine of one's own: as root")
ENDS_S = 600


def left_behind(home: Path) -> dict[str, list[str]]:
    """Return what an engine changes of a machine: interfaces, forwarding, rules and policies, mounts, processes."""
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    tables = {
        tool: subprocess.run([tool], capture_output=True, text=True, check=True).stdout
        for tool in ("iptables-save", "ip6tables-save")
        if shutil.which(tool)
    }
    return {
        "bridges": [link["ifname"] for link in links if link["ifname"].startswith(("docker", "br-", "veth", "tap"))],
        "forwarding": [Path("/proc/sys/net/ipv4/ip_forward").read_text()],
        "rules": [line for text in tables.values() for line in text.splitlines() if line.startswith(("-", ":"))],
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line],
        "processes": list(processes(str(home), name_of(home))),
    }


def processes(*words: str) -> dict[str, int]:
    """Return the processes that have one of these words in their command, by their commands."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if any(word in line for word in words):
                    found[line] = int(folder.name)
    return found


def folders(home: Path) -> list[Path]:
    return [*RUN.glob(name_of(home)), *CGROUPS.glob(f"**/{name_of(home)}")]


def start_container(host: str, folder: Path) -> None:
    """Run a container that waits, of an image with one program, with a published port and a network of its own."""
    program = folder / "wait"
    source = b"#include <unistd.h>\nint main(void) { return pause(); }\n"
    subprocess.run(["cc", "-static", "-x", "c", "-", "-o", str(program)], input=source, check=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(program, "wait")
    docker = ["docker", "--host", host]
    subprocess.run([*docker, "import", "-", "wait"], input=packed.getvalue(), check=True, capture_output=True)
    network = f"apart-{uuid.uuid4()}"
    subprocess.run([*docker, "network", "create", network], check=True, capture_output=True)
    options = ["--detach", f"--network={network}", "--publish=127.0.0.1:8080:80", "--stop-signal=KILL", "--memory=16m"]
    subprocess.run([*docker, "run", *options, "wait", "/wait"], check=True, capture_output=True)


def by_the_end_of_its_input(process: "subprocess.Popen[str]") -> None:
    process.stdin.close()


def by_ctrl_c(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGINT)


def by_kill(process: "subprocess.Popen[str]") -> None:
    process.kill()


@pytest.mark.parametrize("end", [by_the_end_of_its_input, by_ctrl_c, by_kill])
def test_nothing_of_the_tests_own_engine_stays(tmp_path: Path, end: Callable[["subprocess.Popen[str]"], None]):
    before = left_behind(tmp_path)
    run_engine(tmp_path, end)
    wait_until(lambda: not processes(str(tmp_path), name_of(tmp_path)), "the engine's processes to end", ENDS_S)
    assert left_behind(tmp_path) == before
    if end is by_kill:
        assert folders(tmp_path), "a killed test removes no folders; where they are is not known here any more"
        run_engine(tmp_path, by_the_end_of_its_input)
    assert folders(tmp_path) == []


def run_engine(home: Path, end: Callable[["subprocess.Popen[str]"], None]) -> None:
    """Start an engine, whatever engine runs here, and a container on it, and end it."""
    process = subprocess.Popen(
        # Whoever starts tests in the background has them ignore Ctrl-C.
        ["env", "--default-signal=INT", sys.executable, "-m", "tests.compose.engine", str(home)],
        cwd=ROOT,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        host = process.stdout.readline().strip()
        assert host == f"unix://{RUN / name_of(home) / 'docker.sock'}"
        start_container(host, home)
        assert any("containerd-shim" in command for command in processes(name_of(home)))
        end(process)
        process.wait(ENDS_S)
    finally:
        process.kill()
        process.wait()
