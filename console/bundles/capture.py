"""Captures a run's topics, configuration, task set and screenshots into a bundle.

The curation log is read first. Agents log inputs after they have read them, so the other topics, read later, have all
inputs that the captured log refers to.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from console.bundles.bundle_inputs import CONFIG, FILES, TASKS, TOKENS
from console.bundles.progress import report_progress
from console.lineage.traces import lines_in
from console.runs.bundle import Blob, BundleRecord, BundleSection, Manifest, Writer
from console.runs.run_folder import exported_files, format_toml
from console.runs.run_log import ObservationHeader, event_of, existing_topics, present_records
from console.runs.token_texts import format_pieces, read_pieces
from dart_streams.bus.codec import Undecodable
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.config.text import MALFORMED, text_of
from dart_streams.errors import UserError
from dart_streams.store import MissingBlob, SyncStore
from topics import ALL, Topic, curation_log, observations, trained
from topics.trained import TrainedStep
from topics.values import BlobRef

TRACES = "traces"
BLOBS_PER_READ = 32
HAVE_BLOBS = frozenset((observations.TOPIC.name, trained.TOPIC.name))
"""Topics whose events refer to blobs."""
ORDER = (curation_log.TOPIC, *(topic for topic in ALL if topic is not curation_log.TOPIC))


class ActionTokens(msgspec.Struct, frozen=True, gc=False):
    """The tokens of an action."""

    tokens: list[int] = []


class AnswerTokens(msgspec.Struct, frozen=True, gc=False):
    """The part of an observation with its tokens."""

    taken: ActionTokens | None = None


def capture(
    config: Config,
    path: Path,
    topics: Sequence[Topic],
    store: SyncStore | None = None,
    folder: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[BundleSection]:
    """Write the topics' records, spans and files of the run's ``folder``, and with a ``store`` the screenshots.

    Raises ServiceUnavailable if the broker, or the database, does not answer, and UserError if there are no such
    topics, or the store lacks a screenshot. No file is left then.
    """
    chosen = existing_topics(config.bus, [topic for topic in ORDER if topic in topics])
    manifest = Manifest(
        run=config.bus.run,
        prefix=config.bus.prefix,
        captured_ms=now_ms(),
        schemas={topic.name: topic.version for topic in chosen},
    )
    refs: dict[str, BlobRef] = {}
    tokens: set[int] = set()
    with Writer(path, manifest) as bundle:
        bundle.text(CONFIG, format_toml(config))
        bundle.text(TASKS, text_of(Path(config.tasks.file).read_bytes(), config.tasks.file))
        for topic in chosen:
            records = report_progress(present_records(config.bus, topic), topic.name, report)
            noted = with_blobs(topic.name, records, refs) if store and topic.name in HAVE_BLOBS else records
            if topic is observations.TOPIC:
                noted = with_tokens(noted, tokens)
            section = bundle.records(topic.name, noted)
            report(f"{topic.name}: {section.items} records")
        if tokens:
            bundle.text(TOKENS, format_pieces(read_pieces(config, task_sets.load(Path(config.tasks.file))), tokens))
        if folder is not None:
            if exported_files(folder / TRACES):
                report(f"spans: {bundle.section(TRACES, 'lines', lines_in(folder / TRACES)).items}")
            write_files(bundle, folder)
        if store:
            blobs = stored_blobs(store, list(refs.values()))
            section = bundle.blobs(report_progress(blobs, "screenshots", report, len(refs)))
            report(f"screenshots: {section.items}")
    return bundle.sections


def write_files(bundle: Writer, folder: Path) -> None:
    """Write the journal, the report's figures and the metrics of a run's folder, as far as they exist."""
    files = {name: folder / name for name in ("journal.json", "report.json")}
    for name, path in (files | {f"metrics/{path.name}": path for path in exported_files(folder / "metrics")}).items():
        if path.is_file():
            with path.open("rb") as file:
                bundle.section(f"{FILES}{name}", "lines", file)


def with_blobs(topic: str, records: Iterator[BundleRecord], refs: dict[str, BlobRef]) -> Iterator[BundleRecord]:
    """Yield observations or optimizer steps, and add their screenshots or scores to ``refs``."""
    for record in records:
        with contextlib.suppress(Undecodable):
            event: ObservationHeader | TrainedStep = event_of(topic, record)
            ref = event.scores if isinstance(event, TrainedStep) else event.screenshot
            if ref is not None:
                refs[ref.sha256] = ref
        yield record


def with_tokens(records: Iterator[BundleRecord], tokens: set[int]) -> Iterator[BundleRecord]:
    """Yield observations, and add the tokens of their actions to ``tokens``."""
    decode = msgspec.json.Decoder(AnswerTokens).decode
    for record in records:
        with contextlib.suppress(*MALFORMED):
            taken = decode(record.value or b"").taken
            tokens.update(taken.tokens if taken else ())
        yield record


def stored_blobs(store: SyncStore, refs: Sequence[BlobRef]) -> Iterator[Blob]:
    """Yield screenshots from the store; raise :class:`UserError` if one is missing."""
    for start in range(0, len(refs), BLOBS_PER_READ):
        try:
            batch = store.get_blobs(refs[start : start + BLOBS_PER_READ])
        except MissingBlob as missing:
            raise UserError(f"{missing}: capture without --blobs, or from a store that has it") from None
        for sha256, data in batch.items():
            yield Blob(sha256, data)
