"""What makes up the CPU time of a run's processes, read from outside while it lasts.

The threads of each process and the kernel's share come from ``/proc``; requests to the broker come from its own request
log, which is switched on for a few seconds before the figures begin, for writing a line a request costs it CPU time.
"""

import json
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from dart_streams.bus import admin
from dart_streams.clock import now_ms
from dart_streams.config import Bus
from dart_streams.console.launch import process_registry
from dart_streams.console.launch.process_usage import children_by_pid
from dart_streams.console.launch.services.daemon import Home
from dart_streams.console.launch.services.jars import SERVICES
from dart_streams.console.launch.services.local import folder_of
from dart_streams.console.runs.run_folder import RunFolder

EVERY_S = 5.0
REQUESTS_S = 10.0
REQUESTS_AFTER_S = 40.0
"""When requests are counted: before the figures of a run begin."""
REQUEST_LOGGER = "kafka.request.logger"
REQUEST = re.compile(r"Completed request:(\{.*\})\s*$")
THREADS = 8
"""Groups of threads that are told, the largest."""
TICK_S = 0.01
"""The kernel's clock tick, in which ``/proc`` counts CPU time."""


class ThreadUsage(msgspec.Struct, frozen=True):
    """What a thread had cost at one moment: CPU seconds by itself and in the kernel, and how often it had slept."""

    name: str
    user_s: float
    system_s: float
    sleeps: int


class ProcessThreads(msgspec.Struct, frozen=True):
    """The threads of a process at one moment (epoch milliseconds), by their ids; the first one is its main thread."""

    at_ms: int
    process: str
    pid: int
    threads: dict[int, ThreadUsage]


def threads_of(process: str, pid: int) -> ProcessThreads | None:
    """Read the threads of a process; None if it is gone."""
    found: dict[int, ThreadUsage] = {}
    try:
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
            user, system = fields.split()[11:13]
            status = (task / "status").read_text()
            sleeps = int(status.partition("voluntary_ctxt_switches:")[2].split(None, 1)[0])
            found[int(task.name)] = ThreadUsage(name, int(user) * TICK_S, int(system) * TICK_S, sleeps)
    except OSError:
        return None
    return ProcessThreads(now_ms(), process, pid, found)


def causes(samples: Iterable[ProcessThreads], start_ms: int, end_ms: int, steps: int) -> dict[str, Any]:
    """Return what each process itself, without its children, cost a step between two times (epoch milliseconds).

    In core-milliseconds: in all, the kernel's part, and by group of threads; and how often its threads slept and woke.
    """
    found: dict[str, Any] = {}
    spans: dict[str, list[ProcessThreads]] = {}
    for sample in samples:
        if start_ms <= sample.at_ms <= end_ms:
            spans.setdefault(sample.process, []).append(sample)
    for process, taken in sorted(spans.items()):
        first, last = taken[0], taken[-1]
        if first.pid != last.pid or first is last:
            continue
        scale = 1000 / steps * (end_ms - start_ms) / (last.at_ms - first.at_ms)
        found[process] = between(first, last, scale)
    return found


def between(first: ProcessThreads, last: ProcessThreads, scale: float) -> dict[str, Any]:
    """Return what a process did between two samples, its CPU seconds multiplied by ``scale``."""
    system_s, sleeps, groups = 0.0, 0, defaultdict[str, float](float)
    for identity, thread in last.threads.items():
        before = first.threads.get(identity, ThreadUsage(thread.name, 0.0, 0.0, 0))
        group = "main" if identity == last.pid else group_of(thread.name)
        groups[group] += thread.user_s + thread.system_s - before.user_s - before.system_s
        system_s += thread.system_s - before.system_s
        sleeps += thread.sleeps - before.sleeps
    largest = sorted(groups.items(), key=lambda item: -item[1])[:THREADS]
    return {
        "core_ms_per_step": round(sum(groups.values()) * scale, 2),
        "system": round(system_s * scale, 2),
        "wakes_per_s": round(1000 * sleeps / (last.at_ms - first.at_ms)),
        "threads": {name: part for name, cpu_s in largest if (part := round(cpu_s * scale, 2))},
    }


def group_of(thread: str) -> str:
    """Return the group of a thread's name: ``Native-1`` and ``Native-2`` are ``Native``."""
    return re.sub(r"[-\s#:\d]+$", "", thread) or thread


class CauseObserver(threading.Thread):
    """Samples the threads of a run's processes and of the local services every few seconds, until it is stopped.

    Once the training phase is :data:`REQUESTS_AFTER_S` old, it counts the broker's requests.
    """

    def __init__(self, made: RunFolder) -> None:
        super().__init__(name="causes", daemon=True)
        self.made = made
        self.config = made.config()
        self.services = folder_of(self.config)
        self.samples: list[ProcessThreads] = []
        self.requests: dict[str, Any] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self.stopping.wait(EVERY_S):
            for process, pid in self.pids().items():
                if (sample := threads_of(process, pid)) is not None:
                    self.samples.append(sample)
            phase = self.made.journal().phase("circle")
            if not self.requests and phase is not None and now_ms() > phase.started_ms + 1000 * REQUESTS_AFTER_S:
                self.requests = requests(self.config.bus, Home(self.services / "kafka").log)

    def pids(self) -> dict[str, int]:
        """Return the processes: the only child of each subreaper, and the services."""
        registry = process_registry.read(self.made.path / "processes.json")
        if registry is None:
            return {}
        children = children_by_pid()
        found = {one.name: pid for one in registry.children for pid in children.get(one.pid, ())[:1]}
        found["supervisor"] = registry.supervisor.pid
        homes = {service: Home(self.services / service).find() for service in SERVICES}
        return found | {service: home[0].pid for service, home in homes.items() if home is not None}


def requests(bus: Bus, log: Path, seconds: float = REQUESTS_S) -> dict[str, Any]:
    """Let a local broker log its requests for a while; return how many came in a second, by client and by API."""
    before = log.stat().st_size
    with admin.connect(bus) as client:
        broker = str(client.describe_cluster()["brokers"][0]["broker_id"])
        started = time.monotonic()
        set_level(client, broker, "DEBUG")
        time.sleep(seconds)
        set_level(client, broker, "WARN")
        took_s = time.monotonic() - started
    with log.open("rb") as file:
        file.seek(before)
        lines = file.read().decode(errors="replace").splitlines()
    return rates([json.loads(match[1]) for line in lines if (match := REQUEST.search(line))], took_s)


def set_level(client: KafkaAdminClient, broker: str, level: str) -> None:
    """Set the level of the broker's request log."""
    client.alter_configs([ConfigResource(ConfigResourceType.BROKER_LOGGER, broker, {REQUEST_LOGGER: level})])


def rates(logged: Iterable[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Return requests a second, of the broker's log lines: in all, by API, and by client and API."""
    by_api, by_client = Counter[str](), dict[str, Counter[str]]()
    for line in logged:
        header = line["requestHeader"]
        by_api[header["requestApiKeyName"]] += 1
        by_client.setdefault(header["clientId"], Counter())[header["requestApiKeyName"]] += 1
    return {
        "per_s": round(sum(by_api.values()) / seconds, 1),
        "by_api": {api: round(count / seconds, 1) for api, count in by_api.most_common()},
        "by_client": {
            client: {api: round(count / seconds, 1) for api, count in counts.most_common()}
            for client, counts in sorted(by_client.items(), key=lambda item: -item[1].total())
        },
    }
