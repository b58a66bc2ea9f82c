"""Results of runs, one JSON line each; runs of the same code are not repeated."""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmarks.learning.screens import ROOT, files_of
from dart_streams.config import Config
from dart_streams.config.deployment import Tasks

SOURCES = (
    *(f"benchmarks/learning/{name}.py" for name in ("circle", "episodes", "network", "play", "policy", "screens")),
    "dart_streams/actions",
    "dart_streams/curation",
    "dart_streams/policy",
    "plugins/recipes/dart_recipes",
    "dart_streams/episodes/prompts.py",
    "trainer/data",
    "trainer/learning",
    "trainer/objective.py",
    "trainer/warmup",
    "dart_streams/episodes/episode.py",
    "dart_streams/pictures.py",
)
"""Code that affects learning."""
TEMPERATURES = (1.0, 0.5, 0.0)
"""Evaluation temperatures; 0 is greedy."""


class Evaluated(msgspec.Struct, frozen=True):
    """Held-out success rates at a temperature: the mean over pages, and each page's."""

    temperature: float
    rate: float
    pages: dict[str, float]


class CurvePoint(msgspec.Struct, frozen=True):
    """Success rate at temperature 1 after N training episodes."""

    episodes: int
    rate: float


class LearningRun(msgspec.Struct, frozen=True, kw_only=True):
    """One variant with one seed; ``made_by`` identifies configuration, length and code.

    ``before`` and ``after`` are evaluations on held-out tasks by temperature; ``train_before`` and ``train_after`` are
    on the training tasks, at temperature 1. ``metrics`` are means over the first and last tenth of the ``steps``.
    """

    variant: str
    seed: int
    made_by: str
    before: list[Evaluated]
    curve: list[CurvePoint]
    after: list[Evaluated]
    train_before: Evaluated | None = None
    train_after: Evaluated | None = None
    steps: int
    metrics: dict[str, tuple[float, float]]
    cpu_s: float

    def gain(self, temperature: float) -> float:
        """Return the change of the success rate at a temperature."""
        return rate_at(self.after, temperature) - rate_at(self.before, temperature)

    def end(self, temperature: float) -> float:
        """Return the success rate at a temperature after training."""
        return rate_at(self.after, temperature)


def rate_at(evaluations: Iterable[Evaluated], temperature: float) -> float:
    """Return the success rate at a temperature; raise KeyError if not evaluated."""
    return {one.temperature: one.rate for one in evaluations}[temperature]


def made_by(config: Config, recording: str, episodes: int) -> str:
    """Return the digest of configuration, screens, length and code."""
    config = msgspec.structs.replace(config, tasks=Tasks())
    return hashlib.sha256(msgspec.json.encode([config, recording, episodes, code_digest()])).hexdigest()[:16]


@functools.cache
def code_digest() -> str:
    """Return the digest of the code at the first call, as files may change while the process runs."""
    state = hashlib.sha256()
    for source in SOURCES:
        for file in files_of(ROOT / source):
            state.update(file.read_bytes())
    return state.hexdigest()


def read(file: Path) -> list[LearningRun]:
    """Return the runs in a file; none if it is missing."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return [msgspec.json.decode(line, type=LearningRun) for line in lines]


def append(file: Path, run: LearningRun) -> None:
    """Append a run to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lines:
        lines.write(msgspec.json.encode(run) + b"\n")
