"""A Kubernetes of one node, in namespaces that end with it, from programs that setup.sh has fetched and built.

Its network, mounts and processes are its own; only its control groups are the machine's. The kernel ends all of it
with its first process, also when the test is killed, for that one dies with its parent.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_streams.errors import UserError
from tests.compose.own_engine import CGROUPS, NAMESPACES, WITH_ITS_PARENT, environment, first_process
from tests.compose.stack import wait_until
from tests.k8s_cluster.program_image import write_image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOME = ROOT / ".dart/k8s-cluster"
RUN = HOME / "run"
DEBIAN = HOME / "debian"
GROUP = "dart-k8s-test"
PAUSE = "docker.io/local/pause:1"
SHARES = 16384
"""Weight of the cluster's processes beside the machine's: by default all of it together weighs as one process."""
API_SERVICE = "10.79.0.1"
ADDRESS = "10.77.0.1"
RENDER = ("kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone")
UP_S = 240
DOWN_S = 60


def programs() -> Path:
    """Return the folder of the newest built programs; raise :class:`UserError` if there is none."""
    built = sorted(HOME.glob("bin-*/built"), key=lambda file: file.stat().st_mtime)
    if not built:
        raise UserError("Kubernetes is not built: run `make test-k8s-cluster` as root")
    return built[-1].parent


class Node:
    """The node that runs; its pods' logs are in :attr:`logs`."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.logs = RUN / "log/pods"
        path = f"{programs()}:{DEBIAN}/usr/bin:{DEBIAN}/usr/sbin:{environment()['PATH']}"
        kubeconfig = str(RUN / "certificates/admin.kubeconfig")
        self.environment = {**os.environ, "PATH": path, "KUBECONFIG": kubeconfig, "NO_PROXY": "*"}

    def command(self, *arguments: str) -> list[str]:
        return ["nsenter", "--target", str(self.process), "--net", "--mount", "--pid", "--", *arguments]

    def inside(self, *arguments: str, timeout_s: float = 300, text: str | None = None) -> str:
        """Run a command in the node's namespaces and return its output; raise :class:`UserError` if it fails."""
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if done.returncode:
            raise UserError(f"{' '.join(arguments)}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def kubectl(self, *arguments: str, timeout_s: float = 300, text: str | None = None) -> str:
        return self.inside("kubectl", "--namespace", "dart-streams", *arguments, timeout_s=timeout_s, text=text)

    def apply(self, overlay: Path) -> None:
        """Apply an overlay, whose files may be anywhere."""
        text = self.inside(*RENDER, str(overlay))
        self.inside("kubectl", "apply", "--server-side", "--filename=-", text=text)

    def pods(self, component: str | None = None) -> list[dict[str, Any]]:
        """Return the pods of the namespace, or those of a component, as the API server has them."""
        selector = [f"--selector=app.kubernetes.io/component={component}"] if component else []
        return list(json.loads(self.kubectl("get", "pods", "--output=json", *selector))["items"])

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each program of the node, without its pods."""
        used: dict[str, int] = {}
        for number in (CGROUPS / "pids" / GROUP / "tasks").read_text().split():
            with contextlib.suppress(OSError):
                process = Path("/proc", number)
                name = Path(process.joinpath("cmdline").read_text().split("\0")[0]).name
                is_main = f"Tgid:\t{number}\n" in process.joinpath("status").read_text()
                if is_main and name != "bash":
                    pages = int(process.joinpath("statm").read_text().split()[1])
                    used[name] = used.get(name, 0) + pages * os.sysconf("SC_PAGE_SIZE")
        return used

    def processes(self, pod: dict[str, Any]) -> list[int]:
        """Return the processes of a pod's container, as the machine numbers them."""
        container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        groups = list((CGROUPS / "pids" / GROUP).glob(f"**/{container}/cgroup.procs"))
        return [int(number) for group in groups for number in group.read_text().split()]


def missing() -> str:
    """Return what this machine lacks to run a node, empty if nothing."""
    if os.geteuid() != 0:
        return "only root can start a node"
    if not (CGROUPS / "cpuset/cpuset.cpus").exists():
        return "the node wants control groups of version 1"
    try:
        programs()
    except UserError as error:
        return str(error)
    return "" if (DEBIAN / "unpacked").exists() else "Debian's programs are not there: run `make test-k8s-cluster`"


def prepare() -> None:
    """Write the node's certificates, configuration and control groups."""
    shutil.rmtree(RUN, ignore_errors=True)
    (RUN / "cni").mkdir(parents=True)
    for name in ("state", "kafka", "cassandra"):
        volume = RUN / "lib/dart-volumes" / name
        volume.mkdir(parents=True)
        volume.chmod(0o777)
    places = {"@RUN@": str(RUN), "@DEBIAN@": str(DEBIAN), "@GROUP@": GROUP}
    targets = {"bridge.conflist": "cni/10-bridge.conflist"}
    for name in ("containerd.toml", "kubelet.yaml", "proxy.yaml", "bridge.conflist", "Corefile"):
        text = (HERE / "node" / name).read_text()
        for place, path in places.items():
            text = text.replace(place, path)
        (RUN / targets.get(name, name)).write_text(text)
    subprocess.run(["bash", str(HERE / "certificates.sh"), str(RUN / "certificates"), ADDRESS, API_SERVICE], check=True)
    for controller in controllers():
        (controller / GROUP).mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        (CGROUPS / "cpuset" / GROUP / name).write_text((CGROUPS / "cpuset" / name).read_text())
    (CGROUPS / "cpu" / GROUP / "cpu.shares").write_text(str(SHARES))


def controllers() -> list[Path]:
    """Return the folders of the control groups' hierarchies: the unified one takes no part."""
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink() and path.name != "unified"]


@contextlib.contextmanager
def running_node() -> Iterator[Node]:
    """Run a node until the block ends; raise :class:`UserError` if it does not get ready."""
    built = programs()
    if not sweep():
        raise UserError(f"a node runs already: processes are in the control groups {GROUP}")
    prepare()
    command = ["bash", str(HERE / "node/start.sh"), str(RUN), str(built), str(DEBIAN), GROUP]
    with (RUN / "start.log").open("w") as log:
        outer = subprocess.Popen(
            [*WITH_ITS_PARENT, *NAMESPACES, *command],
            env={**environment(), "NO_PROXY": "*"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        node = Node(first_process(outer))
        wait_until(lambda: is_ready(node, outer), "the node to be ready", UP_S)
        node.inside("kubectl", "apply", "--filename=-", text=(HERE / "node/dns.yaml").read_text())
        # The image of the container that holds a pod's namespaces.
        write_image(RUN / "pause.tar", PAUSE, programs() / "pause")
        node.inside("ctr", "--namespace=k8s.io", "images", "import", str(RUN / "pause.tar"))
        yield node
    finally:
        # TERM does not end `unshare --fork`.
        outer.send_signal(signal.SIGKILL)
        outer.wait()
        wait_until(sweep, f"the control groups {GROUP} to be empty", DOWN_S)


def is_ready(node: Node, outer: "subprocess.Popen[bytes]") -> bool:
    """Whether the node is ready and pods may be made; raise :class:`UserError` if its first process has ended."""
    if outer.poll() is not None:
        raise UserError(f"the node has ended: {(RUN / 'start.log').read_text()[-2000:]}")
    try:
        node.inside("kubectl", "--namespace=default", "get", "serviceaccount", "default")
        return "True" in node.inside(
            "kubectl", "get", "nodes", '--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
        )
    except UserError:
        return False


def sweep() -> bool:
    """Remove the control groups, which no namespace ends; return whether none is left.

    runc makes one in the unified hierarchy as well.
    """
    tops = list(CGROUPS.glob(f"*/{GROUP}"))
    for top in tops:
        for folder in sorted((path for path in [top, *top.rglob("*")] if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
    return not any(top.exists() for top in tops)
