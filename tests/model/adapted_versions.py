"""Publishes frozen weights and two adapters of them as the trainer does, in a process of its own.

vLLM and the trainer each want to be the only distributed job of their process.
"""

from pathlib import Path

import msgspec

from benchmarks.synthetic_groups import Maker
from dart_streams.config import parse
from dart_streams.policy.rendering import Renderer
from tests.model.forkserver import spawning
from tests.model.test_resident_weights import announced
from tests.model.test_trainer_step import ready
from topics.weights import WeightVersion
from trainer.learning.learner import Learner
from trainer.ranks import join_job
from trainer.version_writer import VersionWriter

FIRST = 30
"""The number of the first version."""


def main(model: Path, folder: Path) -> None:
    """Write three versions beneath ``folder``, loud enough to matter, and what is announced of them."""
    trainer = {"lora": {"rank": 4}, "learning_rate": 0.02}
    config = parse({"policy": {"path": str(model)}, "trainer": trainer})
    renderer = Renderer(model, config.policy.min_pixels, config.policy.max_pixels)
    maker, found = Maker(config, renderer), []
    with join_job() as ranks:
        learner = Learner(model, renderer, config.trainer, ranks)
        writer = VersionWriter(config.trainer.publish)
        for number in range(FIRST, FIRST + 3):
            written = writer.write(f"{folder}/adapted-{number}", number, *learner.snapshot())
            found.append(announced(written.own, written.base))
            if learner.imitate([ready(maker.group(number), renderer)]) is None:
                raise RuntimeError("nothing to train on")
    (folder / "adapted.json").write_bytes(msgspec.json.encode(found))


def published(model: Path, folder: Path) -> list[WeightVersion]:
    """Return the versions that another process publishes beneath ``folder``."""
    process = spawning.Process(target=main, args=(model, folder))
    process.start()
    process.join()
    assert process.exitcode == 0
    return msgspec.json.decode((folder / "adapted.json").read_bytes(), type=list[WeightVersion])
