"""Restores a captured run into a broker, a store and a state folder that do not have it: the way back from a backup.

The run's topics, rows, screenshots and files are those of the capture, so that page, list and replay show the same.
A bundle has neither weights nor committed offsets: a restored run is looked at, and not resumed.
"""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from console.bundles.bundle_inputs import CONFIG, FILES, TASKS, config_of
from console.bundles.capture import TRACES
from console.bundles.republish import TimeSpan, check_topics, choose_topics, republish
from console.repair import projection
from console.runs.bundle import Bundle
from console.runs.run_folder import RunFolder, folder_of, write_toml
from console.runs.run_log import read_events
from dart_streams.bus import admin
from dart_streams.config import Config
from dart_streams.disk_room import make_private
from dart_streams.errors import UserError
from dart_streams.store import connect, create_schema

RESTORED_FILE = re.compile(r"(journal\.json|report\.json|metrics/[A-Za-z0-9_-]+\.jsonl)")
"""Files of a run's folder that a bundle may bring; a bundle from elsewhere may name any."""


class RestoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A restored run: records of its topics, rows and screenshots; ``moved`` are records with another offset."""

    run: str
    folder: str
    records: int
    moved: int
    rows: int
    screenshots: int


def restore(bundle: Bundle, deployment: Config, state: Path, report: Callable[[str], None]) -> RestoredRun:
    """Restore a run into the broker and the store of ``deployment``, and its files into a state folder.

    Raises UserError, with nothing written, if the run is there already in one of them, or the bundle lacks screenshots.
    """
    config = restored_config(bundle, deployment, state)
    folder = folder_of(config, config.run.id)
    if not bundle.has("blobs"):
        raise UserError(f"{bundle.path} has no screenshots: restore a bundle of `capture --blobs`")
    if folder.path.exists():
        raise UserError(f"{folder.path} exists: name another --state, or remove it with `dart-streams runs rm`")
    chosen = choose_topics(bundle, [])
    specs = check_topics(bundle, config.bus, chosen, own=True)
    create_schema(config.store)
    session = connect(config.store)
    try:
        if any(True for _ in projection.all_rows(session, config.bus.run)):
            raise UserError(f"keyspace {config.store.keyspace} has rows of run {config.bus.run}: name another keyspace")
        make_folder(folder, config, bundle)  # First, so that `runs rm` can remove a restoration that was cut short.
        published = republish(bundle, config.bus, chosen, specs, TimeSpan(), None)
        admin.apply_all(config.bus, keep_grown=True)  # As declared: republishing bounds neither time nor retention.
        for one in published:
            moved = f", {one.moved} at another offset: the topic had lost records" if one.moved else ""
            report(f"{one.topic}: {one.records} records{moved}")
        of_log = projection.project_rows(config.bus.run, read_events(bundle, projection.READ))
        rows = projection.rebuild(session, of_log)
        report(f"rows: {rows}")
        blobs = projection.restore_blobs(session, ((blob.sha256, blob.data) for blob in bundle.blobs()))
        report(f"screenshots: {blobs}")
    finally:
        session.cluster.shutdown()
    write_files(folder, bundle)
    return RestoredRun(
        run=folder.id,
        folder=str(folder.path),
        records=sum(one.records for one in published),
        moved=sum(one.moved for one in published),
        rows=rows,
        screenshots=blobs,
    )


def restored_config(bundle: Bundle, deployment: Config, state: Path) -> Config:
    """Return the run's configuration with the broker and the store of a deployment, and a state folder.

    Raises UserError for a run under a prefix that no run's folder has.
    """
    recorded, replace = config_of(bundle), msgspec.structs.replace
    run_id = bundle.manifest.run.removeprefix("dart.")
    if (prefix := bundle.manifest.prefix) != f"dart.{run_id}.":
        raise UserError(f"{bundle.path} has records of {prefix!r}, no run's prefix: publish them with `replay --into`")
    # Partitions and replicas are the broker's matter; a bundle could ask for any number.
    topics = replace(deployment.bus.topics, retention_hours=recorded.bus.topics.retention_hours)
    bus = replace(deployment.bus, prefix=prefix, topics=topics)
    run = replace(recorded.run, id=run_id, state_dir=str(state.absolute()))
    return replace(recorded, bus=bus, store=deployment.store, run=run)


def make_folder(folder: RunFolder, config: Config, bundle: Bundle) -> None:
    """Make a run's folder with its configuration, its tasks, and the mark of a restored run."""
    make_private(folder.path.parent)
    folder.path.mkdir(0o700)
    folder.restored_file.write_text(f"{bundle.path.name}\n", encoding="utf-8")
    (folder.path / TASKS).write_text(bundle.text(TASKS), encoding="utf-8")
    write_toml(folder.path / CONFIG, folder.resolved(config))


def write_files(folder: RunFolder, bundle: Bundle) -> None:
    """Write the captured files of a run's folder, and its spans; names that no run has are left out."""
    for section in bundle.sections:
        name = section.removeprefix(FILES)
        if name != section and RESTORED_FILE.fullmatch(name):
            write_lines(folder.path / name, bundle, section)
    if bundle.has(TRACES):
        write_lines(folder.path / TRACES / "restored.jsonl", bundle, TRACES)


def write_lines(path: Path, bundle: Bundle, section: str) -> None:
    """Write a section's lines into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(bundle.lines(section))
