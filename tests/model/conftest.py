"""Before a test imports torch: half-precision layers must not end the whole test run on a CPU with unusable AMX."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dart_streams.config import Config
from dart_streams.policy import cpu_features

if TYPE_CHECKING:  # torch
    from dart_streams.policy.rendering import Renderer
    from trainer.ranks import Ranks

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


@pytest.fixture
def ranks() -> Iterator["Ranks"]:
    """A process group of this process alone."""
    from trainer.ranks import join_job

    with join_job() as alone:
        yield alone
