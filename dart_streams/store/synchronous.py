"""The store for synchronous processes: trainer, replay, command line."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import SimpleStatement
from tenacity import Retrying

from dart_streams.config import Config
from dart_streams.errors import ServiceUnavailable
from dart_streams.store import statements
from dart_streams.store.blobs import BlobCache, join_chunks, join_named, ref_of, split_chunks
from dart_streams.store.objects import BlobObjects, open_objects
from dart_streams.store.sessions import gone_error, request_policy
from topics.observations import Observation
from topics.values import BlobRef

CONCURRENCY = 64
CLAIM_TRIES = 20

T = TypeVar("T")


def sync_store(session: Session, config: Config, cache_mb: int | None = None) -> "SyncStore":
    """Return the rows of a configuration's run over a session."""
    settings = config.store
    size = settings.blob_cache_mb if cache_mb is None else cache_mb
    return SyncStore(session, config.bus.run, size, settings.wait_s, open_objects(settings))


class SyncStore:
    """Rows of one run; thread-safe.

    While the database is down, calls are retried for ``wait_s`` and then raise
    :class:`~dart_streams.errors.ServiceUnavailable`.
    """

    def __init__(
        self, session: Session, run: str, cache_mb: int, wait_s: float = 30.0, objects: BlobObjects | None = None
    ) -> None:
        self.session = session
        self.objects = objects
        self.run = run
        self.wait_s = wait_s
        self.cache = BlobCache(cache_mb * 1024 * 1024)
        self._prepare = functools.cache(functools.partial(statements.prepare, session))

    def get_blobs(self, refs: Iterable[BlobRef]) -> dict[str, bytes]:
        """Return screenshots by sha256, read concurrently.

        Raises :class:`~dart_streams.store.blobs.MissingBlob` for the first incomplete one.
        """
        wanted = {ref.sha256: ref for ref in refs}
        blobs = {sha256: data for sha256 in wanted if (data := self.cache.get(sha256)) is not None}
        missing = [sha256 for sha256 in wanted if sha256 not in blobs]
        for sha256, pieces in self._pieces(missing).items():
            blobs[sha256] = join_chunks(wanted[sha256], pieces)
            self.cache.put(sha256, blobs[sha256])
        return blobs

    def _pieces(self, digests: Sequence[str]) -> dict[str, list[bytes]]:
        """Return the stored bytes of screenshots, none of those that are missing; read concurrently."""
        found = dict(zip(digests, self.objects.get_many(digests), strict=True)) if self.objects is not None else {}
        pieces = {sha256: [data] for sha256, data in found.items() if data is not None}
        rest = [sha256 for sha256 in digests if sha256 not in pieces]
        chunks = self._read_many(statements.GET_CHUNKS, [(sha256,) for sha256 in rest])
        pieces |= {sha256: [row[0] for row in rows] for sha256, rows in zip(rest, chunks, strict=True)}
        return {sha256: pieces[sha256] for sha256 in digests}

    def blob_named(self, sha256: str) -> bytes:
        """Return a screenshot by digest; raise :class:`~dart_streams.store.blobs.MissingBlob` if it is not whole."""
        return join_named(sha256, self._pieces([sha256])[sha256])

    def put_blob(self, data: bytes, media_type: str) -> BlobRef:
        """Write bytes that are no screenshot; return their reference once they are durable."""
        ref = ref_of(data, media_type)
        if self.objects is not None:
            self.objects.put(ref.sha256, data)
            return ref
        self._read_many(statements.PUT_CHUNK, [(ref.sha256, n, piece) for n, piece in enumerate(split_chunks(data))])
        return ref

    def steps_many(self, ids: Sequence[str]) -> dict[str, list[Observation]]:
        """Return the observations of several trajectories by step, read concurrently; empty lists of unknown ones."""
        results = self._read_many(statements.GET_STEPS, [(self.run, identity) for identity in ids])
        return {
            identity: [statements.observation_of(self.run, identity, row[0]) for row in rows]
            for identity, rows in zip(ids, results, strict=True)
        }

    def write_trained_by_claim(self, model_id: str, epoch: int, train_step: int, row: dict[str, Any]) -> bool:
        """Write an optimizer step if ``epoch`` is the newest claimed one; return whether it was.

        ``row`` has the columns of ``trained`` except ``train_step``.
        """
        columns = row | {"train_step": train_step}
        values = (self.run, *(columns[name] for name in statements.TRAINED_COLUMNS))
        held = (model_id, epoch, self.run, model_id, epoch)

        def write() -> bool:
            return bool(self.session.execute(self._prepare(statements.PUT_TRAINED_BY_CLAIM), (*held, *values)).one()[0])

        if self._retrying(write):
            return True
        # `store rebuild` removes the claims' row with all others; `epochs` has the claim still.
        if self.claimed_epoch(model_id) != epoch or not self._retrying(lambda: self._raise_claim(model_id, epoch)):
            return False
        return self._retrying(write)

    def claimed_epoch(self, model_id: str) -> int:
        """Return the newest claimed epoch of a model in this run; 0 before the first."""
        query = SimpleStatement(
            "SELECT epoch FROM epochs WHERE run = %s AND model_id = %s", consistency_level=ConsistencyLevel.SERIAL
        )
        row = self._retrying(lambda: self.session.execute(query, (self.run, model_id)).one())
        return int(row[0]) if row else 0

    def claim_epoch(self, model_id: str, beyond: int = 0) -> int:
        """Claim an epoch greater than ``beyond`` and all earlier claims of this model in this run.

        From then on no step of an older epoch is written (:meth:`write_trained_by_claim`).

        Raises :class:`ServiceUnavailable` if the database does not answer, or :data:`CLAIM_TRIES` claims were faster.
        """
        for _ in range(CLAIM_TRIES):
            above = max(beyond, self._noted_claim(model_id))
            claimed = self._retrying(functools.partial(self._try_claim, model_id, above))
            if claimed is not None and self._retrying(functools.partial(self._raise_claim, model_id, claimed)):
                return claimed
        raise ServiceUnavailable(
            f"could not claim an epoch of model {model_id!r} in {CLAIM_TRIES} tries: are other trainers starting?"
        )

    def _noted_claim(self, model_id: str) -> int:
        """Return the newest claim in the steps' table: ``epochs`` may be empty or restored from a backup."""
        [rows] = self._read_many(statements.GET_CLAIMS, [(self.run,)])
        return int((rows[0][0] or {}).get(model_id, 0)) if rows else 0

    def _try_claim(self, model_id: str, beyond: int) -> int | None:
        # A claim whose answer was lost may have been applied; the next try then continues from it.
        place = (self.run, model_id)
        created = self.session.execute(
            "INSERT INTO epochs (run, model_id, epoch) VALUES (%s, %s, %s) IF NOT EXISTS", (*place, beyond + 1)
        )
        row = created.one()
        if row[0]:
            return beyond + 1
        epoch = row[-1]
        claimed = max(epoch, beyond) + 1
        raised = self.session.execute(
            "UPDATE epochs SET epoch = %s WHERE run = %s AND model_id = %s IF epoch = %s", (claimed, *place, epoch)
        )
        return claimed if raised.one()[0] else None

    def _raise_claim(self, model_id: str, epoch: int) -> bool:
        """Note a claim in the steps' table; return False if a newer one is noted there."""
        place = (model_id, epoch, self.run, model_id)
        if self.session.execute(self._prepare(statements.CLAIM_FIRST), place).one()[0]:
            return True
        # A claim whose answer was lost was applied: it is still the one that is held.
        tries = (statements.CLAIM_NEXT, statements.CLAIM_HELD)
        return any(self.session.execute(self._prepare(query), (*place, epoch)).one()[0] for query in tries)

    def _read_many(self, query: str, values: Sequence[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
        def read() -> list[list[tuple[Any, ...]]]:
            results = execute_concurrent_with_args(
                self.session, self._prepare(query), values, concurrency=CONCURRENCY, raise_on_first_error=True
            )
            return [list(rows) for _, rows in results]

        return self._retrying(read) if values else []

    def _retrying(self, call: Callable[[], T]) -> T:
        try:
            result: T = Retrying(**request_policy(self.wait_s))(call)
        except InvalidRequest as error:
            raise gone_error(error, self.run) or error from None
        return result
