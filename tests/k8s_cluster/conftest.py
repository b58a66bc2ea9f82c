"""Figures that the tests of a file measure, kept as JSON beside the node's programs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.k8s_cluster.node import HOME


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Return the figures of a file, which are written after its last test."""
    measured: dict[str, Any] = {}
    yield measured
    name = request.path.stem.removeprefix("test_")
    (HOME / f"{name}.json").write_text(json.dumps(measured, indent=2) + "\n")
