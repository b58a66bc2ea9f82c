"""Reads the trainer's newest metrics from the store."""

from cassandra.cluster import Session

from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.store import SyncStore, connect
from dart_streams.store.sessions import DOWN

TIMEOUT_S = 1.0


class TrainedRows:
    """Reads the optimizer steps of a run; it connects on the first call, and blocks."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.session: Session | None = None

    def newest_metrics(self) -> dict[str, float]:
        """Return the metrics of the newest step; empty while the store has none or is down."""
        try:
            self.session = self.session or connect(self.config.store)
            rows = SyncStore(self.session, self.config.bus.run, 1, TIMEOUT_S).trained()
        except (*DOWN, UserError):
            return {}
        return dict(rows[-1]["metrics"]) if rows else {}

    def close(self) -> None:
        """Close the connection."""
        if self.session is not None:
            self.session.cluster.shutdown()
