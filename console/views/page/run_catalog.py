"""The runs and bundles that a page may open beside its own. Values, and what a catalog answers."""

from typing import Literal, Protocol

import msgspec

from console.views.page.source import RunSource


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run or bundle of the list; null and empty where a fact is not known.

    ``id`` opens it if it ``opens``; ``note`` says what is missing. ``captured_ms`` is the time of a bundle's capture.
    """

    id: str
    kind: Literal["run", "bundle"]
    run: str
    state: str = ""
    recipe: str = ""
    started_ms: int | None = None
    captured_ms: int | None = None
    minutes: float | None = None
    episodes: int | None = None
    steps: int | None = None
    success_before: float | None = None
    success_after: float | None = None
    machine: str = ""
    version: str = ""
    mb: int | None = None
    opens: bool = True
    note: str = ""


class RunCatalog(Protocol):
    """Lists runs and opens them by the ids of its list only, never by a path."""

    async def rows(self) -> list[ListedRun]:
        """Return the runs and bundles, the newest first."""

    def id_of(self, source: RunSource) -> str:
        """Return the id of a source that was opened without the catalog."""

    def has(self, identity: str) -> bool:
        """Return whether the list has an id now; cheap enough for each request."""

    def open(self, identity: str) -> RunSource:
        """Return a source of a listed id, which reads nothing yet; raise UserError for another one."""


class OwnRuns(RunCatalog):
    """The catalog of a page that shows nothing beside the runs that it was started for."""

    def __init__(self, *sources: RunSource) -> None:
        self.sources = sources

    async def rows(self) -> list[ListedRun]:
        """Return the page's own runs."""
        return [describe_source(self.id_of(source), source) for source in self.sources]

    def id_of(self, source: RunSource) -> str:
        """Return the run's name."""
        return source.name

    def has(self, identity: str) -> bool:
        """Return False: there is nothing else to open."""
        return False

    def open(self, identity: str) -> RunSource:
        """Raise LookupError: there is nothing else to open."""
        raise LookupError(identity)


def describe_source(identity: str, source: RunSource) -> ListedRun:
    """Return the row of a source that is not in a folder of runs."""
    journal, state = source.journal(), source.state
    return ListedRun(
        id=identity,
        kind=source.kind,
        run=source.name,
        state="bundle" if source.kind == "bundle" else journal.outcome,
        recipe=", ".join(source.config.recipe),
        started_ms=journal.phases[0].started_ms if journal.phases else None,
        episodes=len(state.finished) or None,
        steps=max(state.trained, default=None),
    )
