"""Launcher of a node's ranks. In a job of several nodes, torchrun's agents meet at ``trainer.rendezvous``.

One node listens there. A failed rank makes all agents start their ranks again, which resume from the checkpoint. A node
whose ``dart-streams train`` was killed joins again once it is started.
"""

import contextlib
import ipaddress
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import psutil
import structlog
from torch.distributed import DistError
from torch.distributed.elastic.agent.server import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, registry
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.launcher.api import LaunchConfig

from dart_streams.background import stop_signals
from dart_streams.errors import AccessRefused, ServiceUnavailable, UserError
from trainer.ranks import MEETING

RENDEZVOUS_S = 600
"""Time in which all nodes must meet, at the start and after a node was lost."""
MAX_RESTARTS = 5
"""Failures in a row, each within :data:`LONG_LIFE_S` of the ranks' start, after which the job ends."""
LONG_LIFE_S = 600.0
EXIT_BARRIER_S = 10.0
"""Time that a node whose ranks have ended waits for the others."""
LAST_WORD_S = 5.0
"""Time in which the other nodes learn from the listening one that the job has failed."""
STORE_TIMEOUT_S = 20
RETRY_S = 1.0
SIGNALS = "SIGTERM,SIGINT"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables for the network interface of gloo and nccl; gloo's default is that of the host name."""

log = structlog.get_logger()


class NodesUnreachable(ServiceUnavailable):
    """The nodes of a job did not meet in time; a restart waits for them again."""


class JobEnded(UserError):
    """Another node ended the job with an error."""


class Place(NamedTuple):
    """Place of this node: the ``address`` by which it reaches the rendezvous, and whether it ``listens`` there."""

    address: str
    listens: bool


class NodeAgent(LocalElasticAgent):
    """torchrun's agent, which starts failed ranks again unless one has an error that a person must correct."""

    started_s = 0.0

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.started_s = time.monotonic()
        return super()._start_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.is_failed():
            codes = {failure.exitcode for failure in result.failures.values()}
            if codes & {UserError.exit_code, AccessRefused.exit_code}:
                self._remaining_restarts = 0
            elif time.monotonic() - self.started_s > LONG_LIFE_S:
                self._remaining_restarts = worker_group.spec.max_restarts
        return result


def run_alone(count: int, *arguments: str) -> None:
    """Run the ranks of the only node; raise ChildFailedError or SignalException.

    They meet in a file in a folder of this user, and talk on the loopback interface. torchrun's rendezvous would listen
    on all interfaces, and unpickle what anybody sends.
    """
    use_interface("127.0.0.1")
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", SIGNALS)
    with tempfile.TemporaryDirectory(prefix="dart-ranks-") as folder:
        job = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), MEETING: f"{folder}/store"}
        ranks = {number: {**job, "RANK": str(number), "LOCAL_RANK": str(number)} for number in range(count)}
        started = start_processes("trainer", sys.executable, dict.fromkeys(ranks, arguments), ranks, DefaultLogsSpecs())
        try:
            result = started.wait(period=0.1)
        except SignalException as asked:
            started.close(asked.sigval)
            raise
    if result is not None and result.is_failed():
        raise ChildFailedError("trainer", failures=result.failures)


def run_node(job: LaunchConfig, *arguments: str) -> None:
    """Run this node's ranks until the job ends; raise ChildFailedError, SignalException or :class:`UserError`.

    ``job.rdzv_endpoint`` is the rendezvous as HOST:PORT.
    """
    # The other nodes would keep the port of a killed first node's shared store.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with interrupted_by_signals():
        while True:
            handler, place = join(job)
            try:
                run_agent(job, handler, place, arguments)
                return
            except (RendezvousConnectionError, DistError):
                log.warning("the node of the rendezvous has gone: waiting for it", rendezvous=job.rdzv_endpoint)
            except RendezvousTimeoutError as error:
                raise NodesUnreachable(
                    f"fewer than trainer.nodes = {job.min_nodes} nodes met at trainer.rendezvous = "
                    f"{job.rdzv_endpoint} within {RENDEZVOUS_S} s: check that `dart-streams train` runs on each of "
                    "them with the same configuration, and that their clocks agree"
                ) from error
            except RendezvousClosedError as error:
                raise JobEnded("another node ended the job: its `dart-streams train` says why") from error


def run_agent(job: LaunchConfig, handler: RendezvousHandler, place: Place, arguments: tuple[str, ...]) -> None:
    """Run an agent to the end of the job; raise ChildFailedError or the errors of the rendezvous."""
    spec = WorkerSpec(
        role=job.role,
        local_world_size=job.nproc_per_node,
        entrypoint=sys.executable,
        args=arguments,
        rdzv_handler=handler,
        max_restarts=job.max_restarts,
        monitor_interval=job.monitor_interval,
        local_addr=place.address,
        numa_options=job.numa_options,
    )
    assert job.logs_specs is not None
    result = NodeAgent(spec, job.logs_specs, exit_barrier_timeout=EXIT_BARRIER_S).run()
    if not isinstance(result, RunResult):  # It waited to replace a node when the job ended.
        raise RendezvousClosedError
    handler.shutdown()
    if result.is_failed():
        if place.listens:
            time.sleep(LAST_WORD_S)
        raise ChildFailedError(name="trainer", failures=result.failures)


def join(job: LaunchConfig) -> tuple[RendezvousHandler, Place]:
    """Connect to the rendezvous, or listen there; raise :class:`NodesUnreachable` after :data:`RENDEZVOUS_S`."""
    deadline = time.monotonic() + RENDEZVOUS_S
    host, _, port = job.rdzv_endpoint.rpartition(":")
    while True:
        try:
            place = find_place(host.strip("[]"), int(port))
            if not place.listens:
                socket.create_connection((host.strip("[]"), int(port)), timeout=STORE_TIMEOUT_S).close()
            use_interface(place.address)
            parameters = RendezvousParameters(
                backend="c10d",
                endpoint=job.rdzv_endpoint,
                run_id=job.run_id,
                min_nodes=job.min_nodes,
                max_nodes=job.max_nodes,
                local_addr=place.address,
                is_host=place.listens,
                join_timeout=RENDEZVOUS_S,
                read_timeout=STORE_TIMEOUT_S,
            )
            return registry.get_rendezvous_handler(parameters), place
        except (OSError, RendezvousConnectionError) as error:
            if time.monotonic() > deadline:
                refuse_rendezvous(job.rdzv_endpoint, error)
        time.sleep(RETRY_S)


def refuse_rendezvous(endpoint: str, error: Exception) -> NoReturn:
    """Raise :class:`NodesUnreachable` for a rendezvous that did not answer."""
    raise NodesUnreachable(
        f"trainer.rendezvous = {endpoint} can't be reached from this node within {RENDEZVOUS_S} s "
        f"({error.__cause__ or error}): check that the host is one of the nodes, that `dart-streams train` runs "
        "there, and that no firewall closes the port"
    ) from error


def find_place(host: str, port: int) -> Place:
    """Return the address by which this node reaches ``host``, and whether it is to listen; raise OSError.

    A node listens if it has the host's address, and if no other process of its machine listens there. Raises
    :class:`UserError` for a public address: who reaches the rendezvous can run code as the trainer.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    for *_, (address, *_) in found:
        if ipaddress.ip_address(str(address).partition("%")[0]).is_global:
            raise UserError(
                f"trainer.rendezvous: {host} is {address}, a public address, and the rendezvous authenticates "
                "nobody: name the node by its address in a private network or tunnel"
            )
    family, *_, target = found[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # Sends nothing.
        address = probe.getsockname()[0]
    return Place(address, address == target[0] and is_free(family, port))


def is_free(family: int, port: int) -> bool:
    """Return whether no process listens on a port of this machine."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("", port))
            return True
    return False


def use_interface(address: str) -> None:
    """Let gloo and nccl use the interface of an address, unless the environment names one."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.partition("%")[0] == address for known in addresses):
            for variable in INTERFACES:
                os.environ.setdefault(variable, name)
            return


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise SignalException on SIGTERM and SIGINT, which torchrun does only while ranks run."""

    def interrupt(number: int, _frame: object) -> None:
        raise SignalException(f"process {os.getpid()} got signal {number}", signal.Signals(number))

    before = {number: signal.signal(number, interrupt) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
