"""The demonstration in containers with its model side: torch, vLLM and Chromium, as users get it, but shorter."""

import json
import os
import time

import pytest

from tests.compose import stand_ins
from tests.compose.company import Company
from tests.compose.conftest import HOME, Figures
from tests.compose.engine import Engine
from tests.compose.stack import Stack

pytestmark = pytest.mark.skipif(not os.environ.get("DART_TEST_MODEL"), reason="slow, and 15 GB: ask for it")

FILES = ("docker-compose.yml", "tests/compose/model.yml")
STEPS = 4
BUILD_S, RUN_S = 3600, 1500


def test_the_demonstration_trains_the_tiny_policy(docker: Engine, proxy: Company, figures: Figures):
    if docker.own:
        stand_ins.build(docker, HOME)
    stack = Stack(docker, proxy.authority, FILES, "tests/compose/model.toml", project="dart-streams-model")
    began = time.monotonic()
    stack.compose("build", "--build-arg", f"HTTPS_PROXY={proxy.proxy}", "env", "trainer", timeout_s=BUILD_S)
    measured = figures["model"] = {"build_s": round(time.monotonic() - began, 1)}
    began = time.monotonic()
    try:
        demo = stack.start("--profile", "demo", "run", "--rm", "-T", "demo", log=HOME / "model-demo.log")
        assert demo.wait(RUN_S) == 0, (HOME / "model-demo.log").read_text()[-3000:]
        measured["run_s"] = round(time.monotonic() - began, 1)
        measured["memory_mb"] = stack.memory_mb()
        copied = HOME / "model-report.json"
        stack.compose("cp", "monitor:/app/.dart/runs/compose-model/report.json", str(copied))
        report = json.loads(copied.read_text())
        measured["report"] = {name: report[name] for name in ("lost", "open", "episodes", "success_before")}
        assert (report["lost"], report["open"], report["outcome"]) == (0, 0, "complete")
        assert report["train_steps"] == STEPS
        assert report["versions_served"] >= 1
    finally:
        (HOME / "model.log").write_text(stack.logs())
        stack.remove()
