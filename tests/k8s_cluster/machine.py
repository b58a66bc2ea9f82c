"""State of the machine that a node must leave as it was: mounts, links, control groups, settings, processes."""

import contextlib
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.compose.own_engine import CGROUPS
from tests.k8s_cluster.node import HOME

SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
FOLDERS = ("/etc/cni", "/var/lib/cni", "/var/lib/kubelet", "/run/containerd", "/var/log/pods", "/var/log/containers")


class Machine(NamedTuple):
    """What other processes of the machine do not change by themselves while a test runs."""

    mounts: frozenset[str]
    links: frozenset[str]
    groups: frozenset[str]
    settings: tuple[str, ...]
    folders: tuple[str, ...]
    rules: str
    processes: tuple[str, ...]


def read_machine() -> Machine:
    """Return the machine's state as this process sees it; ``processes`` are those that run the node's programs."""
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True).stdout
    return Machine(
        mounts=frozenset(line for line in Path("/proc/self/mounts").read_text().splitlines() if str(HOME) in line),
        links=frozenset(line.split()[0] for line in links.splitlines() if line.startswith(("cni", "node", "veth"))),
        groups=frozenset(str(path) for path in CGROUPS.glob("*/dart-k8s*")),
        settings=tuple(Path("/proc/sys", name).read_text().strip() for name in SETTINGS),
        folders=tuple(folder for folder in FOLDERS if Path(folder).exists()),
        rules="\n".join(line for line in rules.splitlines() if "KUBE" in line or "CNI" in line),
        processes=tuple(node_processes()),
    )


def node_processes() -> list[str]:
    """Return the programs of the node's folder that run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program = str((process / "exe").readlink())
            if program.startswith(str(HOME)):
                found.append(program)
    return sorted(found)
