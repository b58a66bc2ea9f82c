"""A circle with private services, networks and disks that faults may damage, and the faults."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.private_services import private_folder
from console.launch.services import local
from console.launch.services.daemon import Home, free_port
from dart_streams.bus import admin
from dart_streams.bus.clients import create_consumer, start_within
from dart_streams.config import Bus, Config, Run, Services, Store
from dart_streams.deadline import Deadline
from tests.faults import disk
from tests.faults.circle import POLL_S, Circle
from tests.faults.network import BROKER, DATABASE, WAYS, Network, network
from tests.faults.network import possible as networks_possible
from topics import BY_NAME

CUT = ("env", "recorder", "rollout", "curator", "trainer")
"""Kinds of processes that have a network of their own."""
DISK_MB, LOG_DISK_MB = 48, 400
READY_S = 180.0
DOUBLED = ("rollout-orders", "observations", "action-requests")
STORMS = (("env", "rollout-orders"), ("recorder", "observations"), ("rollout", "action-requests"))
"""Consumer groups and what they read."""
JOIN_S = 2.0
END_S = 60.0


class Site:
    """Services, networks and disks of one circle's own; made by :func:`site`."""

    def __init__(self, config: Config, folder: Path, networks: dict[str, Network]) -> None:
        self.running = config
        self.keyspace = "faults"
        self.folder = folder
        self.networks = networks

    @property
    def prefixes(self) -> dict[str, Sequence[str]]:
        """Return what starts each kind of process in its network."""
        return {kind: its.prefix for kind, its in self.networks.items()}

    @property
    def log_disk(self) -> Path:
        """Return the folder of Kafka's own disk."""
        return local.folder_of(self.running) / "kafka"

    def service(self, name: str) -> psutil.Process:
        """Return the process of ``kafka`` or ``cassandra``."""
        found = Home(local.folder_of(self.running) / name).find()
        assert found is not None, f"{name} does not run"
        return found[0]

    def up(self) -> None:
        """Start the services that do not run, as an operator would."""
        local.start_services(self.running)


@contextlib.contextmanager
def site(hours: float = 0.0) -> Iterator[Site]:
    """Yield a site, its disks large enough for ``hours``; everything of it is removed at the end.

    What this machine can't make is left out.
    """
    with private_folder(suffix="-site") as services, contextlib.ExitStack() as stack:
        networks = {}
        if not networks_possible():
            for kind in CUT:
                networks[kind] = stack.enter_context(network(f"dart-{kind}"))
        config = Config(
            bus=Bus(servers=f"{BROKER}:{free_port()}"),
            store=Store(hosts=(DATABASE,), port=free_port()),
            run=Run(state_dir=str(services)),
            services=Services(ready_s=READY_S),
        )
        runs = services / "runs-disk"
        if not disk.possible():
            stack.enter_context(disk.small_disk(local.folder_of(config) / "kafka", round(LOG_DISK_MB + 1500 * hours)))
            stack.enter_context(disk.small_disk(runs, round(DISK_MB + 500 * hours)))
        stack.callback(local.stop_services, config)
        local.start_services(config)
        yield Site(config, runs, networks)


class Fault(NamedTuple):
    """A fault of a circle: cause, duration and undo. ``reason`` is why this machine can't make it."""

    name: str
    cause: Callable[[Circle, Site], object]
    undo: Callable[[Circle, Site], object]
    lasts_s: float
    reason: str = ""


def nothing(_: Circle, __: Site) -> None:
    """Undo what needs no undoing."""


def send(processes: list[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    """Do something to each process that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            do(process)


def frozen(kind: str, lasts_s: float) -> Fault:
    """Stop the processes of a kind with SIGSTOP."""
    stopped: list[psutil.Process] = []

    def cause(circle: Circle, _: Site) -> None:
        stopped[:] = circle.of_kind(kind)
        send(stopped, psutil.Process.suspend)

    return Fault(f"{kind} frozen", cause, lambda *_: send(stopped, psutil.Process.resume), lasts_s)


def killed(kind: str) -> Fault:
    """Kill the processes of a kind, but not what starts them again."""
    return Fault(f"{kind} killed", lambda circle, _: send(circle.of_kind(kind), psutil.Process.kill), nothing, 1.0)


def service_frozen(name: str, lasts_s: float) -> Fault:
    """Stop a service with SIGSTOP."""
    return Fault(
        f"{name} frozen",
        lambda _, site: site.service(name).suspend(),
        lambda _, site: site.service(name).resume(),
        lasts_s,
    )


def service_killed(name: str, lasts_s: float) -> Fault:
    """Kill a service with SIGKILL, and start it again later."""

    def cause(_: Circle, site: Site) -> None:
        process = site.service(name)
        process.kill()
        psutil.wait_procs([process], timeout=READY_S)

    return Fault(f"{name} killed", cause, lambda _, site: site.up(), lasts_s)


def cut(kind: str, service: str, way: str, lasts_s: float) -> Fault:
    """Lose the packets between a kind of process and a service, in one direction or both."""
    name = {BROKER: "broker", DATABASE: "database"}[service]
    return Fault(
        f"{kind} cut from {name}, {way}",
        lambda _, site: site.networks[kind].cut(service, way),  # type: ignore[arg-type]
        lambda _, site: site.networks[kind].heal(),
        lasts_s,
        networks_possible(),
    )


def run_disk_full(lasts_s: float) -> Fault:
    """Fill the disk of the run's folder, and kill a worker meanwhile, and again once there is room.

    It is started on a full disk, and its next death is seen by whoever started it there.
    """

    def cause(circle: Circle, site: Site) -> None:
        disk.fill(site.folder)
        send(circle.of_kind("env"), psutil.Process.kill)

    def undo(circle: Circle, site: Site) -> None:
        disk.make_room(site.folder)
        send(circle.of_kind("env"), psutil.Process.kill)

    return Fault("run folder full", cause, undo, lasts_s, disk.possible())


def log_disk_full(lasts_s: float) -> Fault:
    """Fill the disk of Kafka's log; Kafka ends by itself then, and is started once there is room."""
    kafka: list[psutil.Process] = []

    def cause(_: Circle, site: Site) -> None:
        kafka[:] = [site.service("kafka")]
        disk.fill(site.log_disk)

    def undo(_: Circle, site: Site) -> None:
        # While it is ending it may still answer, and would not be started.
        psutil.wait_procs(kafka, timeout=END_S)
        disk.make_room(site.log_disk)
        site.up()

    return Fault("Kafka's log full", cause, undo, lasts_s, disk.possible())


async def join_and_leave(bus: Bus, times: int) -> None:
    """Join each group as an idle member and leave again, ``times`` times."""
    for number, (group, topic) in itertools.product(range(times), STORMS):
        member = create_consumer(bus, BY_NAME[topic], group=group, client_id=f"storm-{number}")
        await start_within(member, bus)
        deadline = Deadline(JOIN_S)
        while not member.assignment() and not deadline.expired:
            await member.getmany(timeout_ms=100, max_records=1)
        await member.stop()


def rebalance_storm(times: int) -> Fault:
    """Have strangers join each consumer group and leave it, one after the other."""
    return Fault(
        "rebalance storm", lambda circle, _: asyncio.run(join_and_leave(circle.config.bus, times)), nothing, 0.0
    )


def double_partitions(circle: Circle, _: Site) -> None:
    """Give twice the partitions to topics that may have more."""
    bus = circle.config.bus
    with admin.connect(bus) as client:
        for name in DOUBLED:
            client.create_partitions({bus.prefix + name: 2 * BY_NAME[name].partitions})


def delete_requests(circle: Circle, _: Site) -> None:
    """Delete a topic that all rollouts need."""
    bus = circle.config.bus
    with admin.connect(bus) as client:
        client.delete_topics([f"{bus.prefix}action-requests"])


PARTITIONS_DOUBLED = Fault("partitions doubled", double_partitions, nothing, 1.0)


def topic_deleted(lasts_s: float) -> Fault:
    """Delete a topic, and make it again later, as the processes that end say."""
    return Fault(
        "topic deleted", delete_requests, lambda circle, _: admin.apply_all(circle.config.bus, keep_grown=True), lasts_s
    )


def of(circle: Circle, site: Site, fault: Fault) -> float:
    """Cause a fault, undo it, and wait until the circle has made two more steps; return the seconds it took from there.

    A run that ends meanwhile has said why, and is resumed. It may still be ending when the fault is undone.
    """
    fault.cause(circle, site)
    deadline = Deadline(fault.lasts_s)
    while not deadline.expired:
        time.sleep(POLL_S)
    fault.undo(circle, site)
    begin = time.monotonic()
    ends = circle.measured.setdefault("ended", [])
    wanted = circle.steps() + 2
    circle.until(lambda: circle.ended or circle.steps() >= wanted, f"step {wanted} after {fault.name}, or an end")
    if circle.ended:
        assert " died" in circle.said(), circle.said()
        ends.append(fault.name)
        circle.resume()
        circle.goes_on()
    return round(time.monotonic() - begin, 1)


def endure(circle: Circle, site: Site, faults: Sequence[Fault]) -> None:
    """Have each fault in turn, and note the seconds that the circle took to go on."""
    circle.measured["recovery"] = {fault.name: of(circle, site, fault) for fault in faults}
    circle.measured["recovery_s"] = max(circle.measured["recovery"].values())


def every_fault(lasts_s: float) -> list[Fault]:
    """Return each fault that a run is expected to survive; those that stand still do so for ``lasts_s``."""
    return [
        *(frozen(kind, lasts_s) for kind in ("env", "recorder", "rollout", "curator", "trainer", "monitor")),
        *(killed(kind) for kind in ("env", "recorder", "rollout", "curator", "trainer", "monitor")),
        *(cut(kind, BROKER, way, lasts_s) for kind in CUT for way in WAYS),
        *(cut(kind, DATABASE, way, lasts_s) for kind in ("env", "recorder") for way in WAYS),
        *(service_frozen(name, lasts_s) for name in ("kafka", "cassandra")),
        *(service_killed(name, 3.0) for name in ("kafka", "cassandra")),
        run_disk_full(5.0),
        log_disk_full(5.0),
        rebalance_storm(3),
        topic_deleted(8.0),
    ]
