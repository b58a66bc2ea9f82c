"""Memory and time of writing and reading a data set, by its size; needs .venv/data.

The episodes are made up: of ``STEPS`` steps, each screen one of ``SCREENS`` pictures of 2 KB. Each part runs in a
process of its own, whose peak memory is reported.
"""

import io
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from PIL import Image

from dart_streams.bus.codec import encode
from dart_streams.config import Config
from dart_streams.console.bundles.bundle_inputs import CONFIG, TASKS
from dart_streams.console.datasets.episode_columns import Layout
from dart_streams.console.datasets.episode_export import EpisodeExport, EpisodeFilter, IndexedEpisodes
from dart_streams.console.datasets.episode_rows import episode_of, image_ref
from dart_streams.console.datasets.export_index import ExportIndex
from dart_streams.console.runs.bundle import Blob, Bundle, BundleRecord, Manifest, Writer
from dart_streams.console.runs.run_folder import without_nulls
from dart_streams.episodes.trajectory_summary import summarise
from topics import Topic, observations, trajectories
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling, VersionSpan

STEPS = 2
TOKENS = 8
SCREENS = 500
MADE_MS = 1_700_000_000_000


class DataSetCost(msgspec.Struct, frozen=True, kw_only=True):
    """One part's cost; ``peak_mb`` is the largest memory of its process."""

    part: str
    episodes: int
    seconds: float
    peak_mb: float
    file_mb: float


def measure(episodes: int, layout: Layout = "trajectory") -> Iterator[DataSetCost]:
    """Yield what it costs to export a bundle of so many episodes, and to read the set back."""
    with tempfile.TemporaryDirectory(prefix="dart-data-sets-") as folder:
        bundle, path = Path(folder) / "run.dart", Path(folder) / "set.parquet"
        write_bundle(bundle, episodes)
        for part, function, arguments, file in (
            ("import the libraries", load, (), None),
            ("export", export, (bundle, path, layout), path),
            ("read", read, (path,), path),
        ):
            yield cost(part, episodes, function, arguments, file)


def cost(
    part: str, episodes: int, function: Callable[..., None], arguments: tuple[Any, ...], file: Path | None
) -> DataSetCost:
    """Run a part in a fresh process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=measured, args=(queue, function, arguments))
    process.start()
    seconds, peak_mb = queue.get()
    process.join()
    size = file.stat().st_size / 1e6 if file else 0.0
    return DataSetCost(
        part=part, episodes=episodes, seconds=round(seconds, 1), peak_mb=round(peak_mb), file_mb=round(size, 1)
    )


def measured(queue: Any, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Put a function's seconds, and this process's peak memory in MB, into a queue."""
    began = time.perf_counter()
    function(*arguments)
    queue.put((time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def load() -> None:
    """Import what the other parts need: that memory is theirs too."""
    from dart_streams.console.datasets import parquet

    parquet.features_of("step")


def export(bundle: Path, path: Path, layout: Layout) -> None:
    """Export a bundle."""
    from dart_streams.console.datasets.parquet import ParquetSet

    source = Bundle(bundle)
    with ExportIndex() as index, ParquetSet(path, layout) as file:
        made = EpisodeExport(source, "made-up", index, IndexedEpisodes(index, source))
        for rows in made.rows(EpisodeFilter(), layout, Config().policy):
            file.write(rows)


def read(path: Path) -> None:
    """Read a set back as episodes."""
    from dart_streams.console.datasets import parquet

    for rows in parquet.episodes_in(path):
        episode_of(rows)


def write_bundle(path: Path, episodes: int) -> None:
    """Write the made-up bundle."""
    manifest = Manifest(run="made-up", prefix="dart.made-up.", captured_ms=MADE_MS, schemas={})
    screens = [screen(number) for number in range(SCREENS)]
    refs = [image_ref(data) for data in screens]

    def episode(number: int) -> list[Observation]:
        return observations_of(number, [refs[(number * (STEPS + 1) + step) % SCREENS] for step in range(STEPS + 1)])

    with Writer(path, manifest) as bundle:
        bundle.text(CONFIG, tomli_w.dumps(without_nulls(msgspec.to_builtins(Config()))))
        bundle.text(TASKS, "")
        whole = (one for number in range(episodes) for one in episode(number))
        bundle.records(observations.TOPIC.name, records(observations.TOPIC, whole))
        ended = (summarise(episode(number)) for number in range(episodes))
        bundle.records(trajectories.TOPIC.name, records(trajectories.TOPIC, ended))
        bundle.blobs(Blob(ref.sha256, data) for ref, data in zip(refs, screens, strict=True))


def records(topic: Topic, events: Iterator[Any]) -> Iterator[BundleRecord]:
    """Yield events as a bundle's records."""
    for offset, event in enumerate(events):
        one = encode(topic, event, (), str(offset))
        yield BundleRecord(0, offset, MADE_MS, one.key, one.value, list(one.headers))


def screen(number: int) -> bytes:
    """Return a picture of some 2 KB."""
    noise = random.Random(number)
    file = io.BytesIO()
    Image.frombytes("L", (48, 40), noise.randbytes(48 * 40)).save(file, "PNG")
    return file.getvalue()


def observations_of(number: int, refs: list[Any]) -> list[Observation]:
    """Return the observations of an episode."""
    order = RolloutOrder(
        order_id=f"g-{number // 8:06d}/{number % 8}/0",
        group_id=f"g-{number // 8:06d}",
        group_size=8,
        sample=number % 8,
        attempt=0,
        task_id=f"made-up/page#{number % 500}",
        max_steps=STEPS,
        purpose="train",
        sampling=Sampling(),
        after_version=number // 64,
    )
    noise = random.Random(number)
    end = EpisodeEnd(kind="success", reward=1.0)
    return [
        Observation(
            trajectory_id=f"t-{number:08d}",
            order=order,
            step=step,
            instruction="Click the button that says OK.",
            screenshot=ref,
            taken=answer(number, step, noise) if step else None,
            end=end if step == STEPS else None,
            env_host="env-0",
            at_ms=MADE_MS + step,
        )
        for step, ref in enumerate(refs)
    ]


def answer(number: int, step: int, noise: random.Random) -> ExecutedAction:
    """Return an answer of ``TOKENS`` tokens."""
    text = f"Thought: here.\nAction: click(start_box='({noise.randrange(160)},{noise.randrange(160)})')"
    return ExecutedAction(
        request_id=f"t-{number:08d}/{step - 1}/0",
        text=text,
        action=text.partition("\n")[2],
        tokens=[noise.randrange(150_000) for _ in range(TOKENS)],
        logprobs=[-noise.random() for _ in range(TOKENS)],
        entropies=[noise.random() for _ in range(TOKENS)],
        versions=[VersionSpan(version=number // 64, start=0, end=TOKENS)],
        prompt_sha="0" * 64,
        queue_ms=1.0,
        generate_ms=90.0,
        execute_ms=60.0,
    )


if __name__ == "__main__":
    sys.stdout.writelines(f"{msgspec.json.encode(line).decode()}\n" for line in measure(int(sys.argv[1])))
