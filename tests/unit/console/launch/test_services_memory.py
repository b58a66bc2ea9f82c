"""What the local services need, and what there is."""

import sys
from pathlib import Path

import pytest

from console.launch.services import local, memory
from console.launch.services.daemon import Home
from console.launch.services.jvm import Cassandra, Kafka
from dart_streams.config import Bus, Services, Store
from dart_streams.errors import ServiceUnavailable

MIB = memory.MIB
KAFKA = Kafka(Bus(servers="127.0.0.1:1"), Services())
STAT = f"cache 7\ninactive_file {30 * MIB}\nactive_file {20 * MIB}\n"


def group(folder: Path, limit: str, taken_mib: int, stat: str = STAT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{taken_mib * MIB}\n")
    (folder / "memory.stat").write_text(stat)


def test_what_a_control_group_and_those_above_it_leave_is_found(tmp_path: Path):
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/user/job\n")
    group(groups / "user" / "job", str(1000 * MIB), 900)
    group(groups / "user", "max", 2000)
    group(groups, str(4000 * MIB), 5000)
    assert memory.limits_mb(groups, own) == [
        (150, f"the control group {groups}/user/job"),
        (0, f"the control group {groups}"),
    ]


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path):
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    assert memory.limits_mb(groups, own) == [], "without control groups there is the machine alone"
    own.write_text("0::/system.slice/docker-0a.scope\n")
    group(groups, str(512 * MIB), 100, stat="")
    assert memory.limits_mb(groups, own) == [(412, f"the control group {groups}")]


def test_the_older_kind_of_control_groups_is_read_too(tmp_path: Path):
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("9:name=systemd:/\n4:memory:/job\n0::/\n")
    folder = groups / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{300 * MIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{250 * MIB}\n")
    (folder / "memory.stat").write_text(f"total_inactive_file {10 * MIB}\ntotal_active_file 0\n")
    assert memory.limits_mb(groups, own) == [(60, f"the control group {folder}")]


def test_what_can_not_fit_is_refused_with_the_amounts():
    memory.refuse_too_little([KAFKA])
    memory.refuse_too_little([])
    huge = Cassandra(Store(port=1), Services(cassandra_heap_mb=10_000_000))
    with pytest.raises(ServiceUnavailable) as refused:
        memory.refuse_too_little([KAFKA, huge])
    text = str(refused.value)
    assert "Kafka 662 (services.kafka_heap_mb = 512)" in text
    assert "Cassandra 10000400 (services.cassandra_heap_mb = 10000000)" in text
    assert "lower the heaps" in text


def test_only_a_killed_service_is_blamed_on_memory(tmp_path: Path):
    home = Home(tmp_path / "kafka")
    process = home.spawn([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    with pytest.raises(ServiceUnavailable, match=r"ended while it started, probably for lack of memory.*kafka_heap_mb"):
        local.wait_until_ready(KAFKA, home, process, 120)
    process = home.spawn([sys.executable, "-c", "raise SystemExit('no such property')"])
    with pytest.raises(ServiceUnavailable) as refused:
        local.wait_until_ready(KAFKA, home, process, 120)
    assert "memory" not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("Error occurred during initialization of VM\nCould not reserve enough space for object heap", "got no memory"),
        ("Terminating due to java.lang.OutOfMemoryError: Java heap space", "raise services.kafka_heap_mb (it is 512)"),
        ("java.lang.IllegalArgumentException: no such property", ""),
    ],
)
def test_a_jvm_without_memory_is_known_by_its_own_words(said: str, message: str):
    found = memory.memory_advice(said, killed=False, service=KAFKA)
    assert message in found
    assert bool(found) == bool(message)
