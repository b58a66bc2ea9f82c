"""Before a test imports torch or vllm: the environment of a rollout worker, and no half precision by unusable AMX."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dart_streams.config import Config
from dart_streams.policy import cpu_features
from workers.rollout import vllm_settings

if TYPE_CHECKING:  # torch
    from dart_streams.policy.rendering import Renderer
    from dart_streams.policy.resident_weights import ResidentWeights
    from tests.model.test_trainer_run import Run
    from trainer.ranks import Ranks

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models so small gain nothing from more, and others want the cores
os.environ.update(vllm_settings.engine_environment(os.environ))
cpu_features.limit_isa("bfloat16", Path(__file__).parents[2] / ".dart")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny policy that was not warmed up."""
    from dart_streams.policy import tiny

    folder = tmp_path_factory.mktemp("policy") / "tiny"
    tiny.build(folder)
    return folder


@pytest.fixture(scope="module")
def renderer(policy: Path) -> "Renderer":
    """The renderer of :func:`policy`."""
    from dart_streams.policy.rendering import Renderer

    limits = Config().policy
    return Renderer(policy, limits.min_pixels, limits.max_pixels)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for the module: an engine belongs to the loop in which it was started."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def new_run(services: Any, policy: Path) -> Callable[..., "Run"]:
    """Return a function that makes a run with ``groups`` groups, steps of one and these trainer settings."""
    from tests.model.test_trainer_run import Run

    def make(groups: int = 0, **trainer: Any) -> Run:
        settings = {"groups_per_step": 1, "micro_batch": 4, **trainer}
        run = Run(services.config(policy={"path": str(policy)}, trainer=settings, curation={"max_staleness": 100}))
        if groups:
            run.fill(groups)
        return run

    return make


@pytest.fixture
def ranks() -> Iterator["Ranks"]:
    """A process group of this process alone."""
    from trainer.ranks import join_job

    with join_job() as alone:
        yield alone


@pytest.fixture(params=["disk", "object store"])
def weights_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where versions are published."""
    return str(tmp_path / "weights") if request.param == "disk" else f"memory://{tmp_path.name}"


@pytest.fixture
def resident(tmp_path: Path) -> "ResidentWeights":
    """A worker's weights, with a cache of their own."""
    from dart_streams.policy.resident_weights import ResidentWeights

    return ResidentWeights(tmp_path / "cache")
