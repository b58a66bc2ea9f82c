"""The benchmarks of the model side run to their end, with real vLLM workers and a real trainer, and tell their keys."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif("DART_SLOW_TESTS" not in os.environ, reason="takes minutes: set DART_SLOW_TESTS=1")


def bench(*arguments: str) -> dict[str, Any]:
    program = Path(sys.executable).parent / "dart-streams"
    done = subprocess.run([program, "bench", *arguments, "--json"], capture_output=True, timeout=600, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_weights_are_switched_under_load_and_no_request_fails():
    found = bench("weights", "--switches", "2", "--restarts", "1", "--window-s", "1")
    assert found["workers"] == 2
    assert found["switches"] == 4
    assert found["failed"] == 0
    assert found["capacity_min"] >= 0.5
    assert 0 < found["pause_ms"]["p50"] <= found["pause_ms"]["max"] < found["restart_ms"]["p50"]
    assert found["ratio"] > 1
    assert "throughput_lost_pct" in found


def test_a_delta_is_smaller_and_each_version_is_served_as_published():
    found = bench("weights", "--kinds", "--versions", "2")
    kinds = found["kinds"]
    assert {kind: figures["digests_equal"] for kind, figures in kinds.items()} == dict.fromkeys(kinds, 2)
    assert kinds["full_float32"]["bytes"]["p50"] == 2 * kinds["full"]["bytes"]["p50"]
    assert kinds["delta"]["bytes"]["max"] < kinds["full"]["bytes"]["p50"] / 5
    assert 0 < kinds["delta"]["changed_share"]["p50"] < 0.2
    assert kinds["adapter"]["bytes"]["max"] < kinds["full"]["bytes"]["p50"] / 2, "the tiny policy's layers are narrow"
    assert all(0 < figures["published_s"]["p50"] < figures["served_s"]["max"] for figures in kinds.values())


def test_the_trainer_reports_its_wait_for_data_and_the_slope_of_its_memory():
    found = bench("trainer", "--steps", "6", "--groups", "1")
    assert found["steps"] == 6
    assert 0 <= found["data_wait_pct"] < 100
    assert found["rss_mb"]["first"] > 0
    assert "rss_slope_mb_per_step" in found
