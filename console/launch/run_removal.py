"""Removes what a run has left: its topics, its rows, screenshots that no other run shows, and its folder."""

import shutil
from pathlib import Path

import msgspec
from cassandra.cluster import Session
from cassandra.query import SimpleStatement
from kafka.admin import KafkaAdminClient

from console.launch.run_list import folder_bytes, is_running
from console.repair import projection
from console.runs.run_folder import RunFolder, all_runs, point_latest
from dart_streams.bus import admin
from dart_streams.config import Bus
from dart_streams.config.text import MALFORMED
from dart_streams.errors import UserError
from dart_streams.store.objects import open_objects
from topics.values import BlobRef

PAGE = 500


class Remainder(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has left, or what was removed of it, by kind."""

    kind: str
    count: int
    note: str = ""


class ShownScreen(msgspec.Struct, frozen=True):
    """The part of an observation that names its screenshot."""

    screenshot: BlobRef | None = None


def topics_of(client: KafkaAdminClient, bus: Bus) -> list[str]:
    """Return the names of all topics of a run, changelogs and dead letters included."""
    return sorted(name for name in client.list_topics() if name.startswith(bus.prefix))


def groups_of(client: KafkaAdminClient, bus: Bus) -> list[str]:
    """Return the consumer groups of a run."""
    return sorted(group["group_id"] for group in client.list_groups() if group["group_id"].startswith(bus.prefix))


def screenshots_in(session: Session, run: str) -> tuple[set[str], set[str]]:
    """Return the screenshots that only this run's steps show, and those that other runs show too, by sha256.

    Reads the steps of every run in the store. Raises UserError for a damaged step of another run, whose screenshot is
    not known.
    """
    own, others = set[str](), set[str]()
    query = SimpleStatement("SELECT run, observation FROM steps", fetch_size=PAGE)
    for name, observation in session.execute(query, timeout=None):
        try:
            shown = msgspec.json.decode(observation, type=ShownScreen).screenshot
        except MALFORMED as error:
            if name == run:
                continue
            raise UserError(
                f"a step of run {name} in the store is damaged ({error}): mend it with `dart-streams store rebuild "
                f"--run {name}`, or leave out --screenshots"
            ) from None
        if shown is not None:
            (own if name == run else others).add(shown.sha256)
    return own - others, own & others


class RunRemoval:
    """What a run has left on its broker, in its store and on disk; :meth:`remove` deletes it.

    ``screenshots`` includes those that no other run shows. A worker does not write a screen again that it has written
    once, so no run may be under way then.
    """

    def __init__(self, folder: RunFolder, session: Session, *, screenshots: bool) -> None:
        self.folder = folder
        self.config = folder.config()
        self.bus = self.config.bus
        self.session = session
        self.screenshots = screenshots
        for other in all_runs(folder.path.parent) if screenshots else [folder]:
            if is_running(other):
                raise UserError(f"run {other.id!r} is under way: end it first with `dart-streams runs stop {other.id}`")

    def remainders(self) -> list[Remainder]:
        """Return what is there, and remove nothing."""
        with admin.connect(self.bus) as client:
            topics, groups = topics_of(client, self.bus), groups_of(client, self.bus)
        rows = sum(1 for _ in projection.all_rows(self.session, self.bus.run))
        found = [
            Remainder(kind="topics", count=len(topics), note=f"{self.bus.prefix}*"),
            Remainder(kind="consumer groups", count=len(groups)),
            Remainder(kind="rows", count=rows),
        ]
        if self.screenshots:
            own, shared = screenshots_in(self.session, self.bus.run)
            found.append(Remainder(kind="screenshots", count=len(own), note=f"{len(shared)} shared ones stay"))
        size = round(folder_bytes(self.folder.path) / 1e6)
        return [*found, Remainder(kind="folder", count=1, note=f"{self.folder.path}, {size} MB")]

    def remove(self) -> None:
        """Delete it; the folder last, so that an interrupted removal can be repeated."""
        own = screenshots_in(self.session, self.bus.run)[0] if self.screenshots else set()
        with admin.connect(self.bus) as client:
            if topics := topics_of(client, self.bus):
                client.delete_topics(topics)
            if groups := groups_of(client, self.bus):
                client.delete_groups(groups)
        projection.wipe(self.session, self.bus.run)
        if (objects := open_objects(self.config.store)) is not None:
            objects.remove(sorted(own))
        projection.write(self.session, "DELETE FROM blobs WHERE sha256 = ?", [(sha256,) for sha256 in sorted(own)])
        forget_folder(self.folder.path)


def forget_folder(path: Path) -> None:
    """Remove a run's folder; ``latest`` names the newest of the others then."""
    latest = path.with_name("latest")
    was_latest = latest.is_symlink() and latest.resolve() == path.resolve()
    shutil.rmtree(path)
    if was_latest:
        others = all_runs(path.parent)
        point_latest(path.parent, others[-1].id if others else "")
