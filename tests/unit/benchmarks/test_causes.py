"""What makes up a process's CPU time: by thread, by the kernel's share, and by requests to the broker."""

import os
import threading
import time
from pathlib import Path

import pytest

from benchmarks import causes, circle_run, modes
from benchmarks.causes import ProcessThreads, ThreadUsage

PAGES = Path(__file__).parents[3] / "deploy/config/workload/pages/pages.toml"


def sample(at_ms: int, pid: int = 7, **threads: tuple[float, float, int]) -> ProcessThreads:
    """Return a sample of Kafka, whose threads are numbered from its pid on; ``_`` stands for a dash in their names."""
    usages = [ThreadUsage(name.replace("_", "-"), *values) for name, values in threads.items()]
    return ProcessThreads(at_ms, "kafka", pid, dict(enumerate(usages, pid)))


def test_threads_of_a_kind_are_added_up_and_told_by_step():
    samples = [
        sample(500, main=(9.0, 9.0, 99)),
        sample(1000, main=(1.0, 0.5, 10), io_1=(2.0, 0.0, 100), io_2=(1.0, 0.0, 0)),
        sample(11_000, main=(1.2, 0.6, 30), io_1=(3.0, 0.5, 300), io_2=(2.0, 0.0, 0), late=(0.1, 0.0, 5)),
    ]
    found = causes.causes(samples, 1000, 11_000, steps=100)
    assert found == {
        "kafka": {
            "core_ms_per_step": 29.0,
            "system": 6.0,
            "wakes_per_s": 22,
            "threads": {"io": 25.0, "main": 3.0, "late": 1.0},
        }
    }


def test_samples_that_cover_a_part_of_the_time_count_for_all_of_it():
    samples = [sample(3000, main=(1.0, 0.0, 0)), sample(8000, main=(2.0, 0.0, 0))]
    found = causes.causes(samples, 1000, 11_000, steps=100)
    assert found["kafka"]["core_ms_per_step"] == 20.0


def test_a_process_that_was_started_again_is_left_out():
    assert causes.causes([sample(1, main=(9.0, 0.0, 0)), sample(2, 8, main=(1.0, 0.0, 0))], 0, 3, steps=1) == {}


def test_a_process_knows_its_threads():
    done = threading.Event()
    idle = threading.Thread(target=done.wait)
    idle.start()
    try:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        found = causes.threads_of("tests", os.getpid())
    finally:
        done.set()
        idle.join()
    assert found is not None
    assert next(iter(found.threads)) == os.getpid()
    assert found.threads[os.getpid()].user_s + found.threads[os.getpid()].system_s >= 0.08
    assert idle.native_id in found.threads
    assert causes.threads_of("nobody", 2**22 + 1) is None


def test_requests_are_counted_by_client_and_by_api():
    def line(client: str, api: str) -> dict[str, object]:
        return {"requestHeader": {"clientId": client, "requestApiKeyName": api}}

    found = causes.rates([*[line("env-0", "FETCH")] * 20, line("env-0", "PRODUCE"), line("lag", "LIST_GROUPS")], 10.0)
    assert found["per_s"] == pytest.approx(2.2)
    assert found["by_api"] == {"FETCH": 2.0, "PRODUCE": 0.1, "LIST_GROUPS": 0.1}
    assert found["by_client"] == {"env-0": {"FETCH": 2.0, "PRODUCE": 0.1}, "lag": {"LIST_GROUPS": 0.1}}


def test_the_brokers_log_line_is_recognised():
    text = '2026-11-23 09:00:00,000 DEBUG logger Completed request:{"requestHeader":{"clientId":"a"},"x":{}}'
    match = causes.REQUEST.search(text)
    assert match is not None
    assert match[1] == '{"requestHeader":{"clientId":"a"},"x":{}}'
    assert causes.REQUEST.search("WARN logger something else") is None


def test_a_workload_trains_by_its_own_bounds():
    config = circle_run.bounded(modes.located(PAGES), 2.0)
    assert (config.run.minutes, config.run.demonstrate, config.evaluation.episodes) == (2.0, False, 0)
    assert config.env.episode_timeout_s > 60.0
