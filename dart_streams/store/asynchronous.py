"""The store for asyncio processes: driver callbacks bridged to the event loop, bounded concurrency, retries."""

import asyncio
import contextlib
from collections import deque
from typing import Any

from cassandra import InvalidRequest
from cassandra.cluster import Session
from cassandra.query import PreparedStatement
from tenacity import AsyncRetrying

from dart_streams.config import Config, Store
from dart_streams.deadline import Deadline
from dart_streams.store import statements
from dart_streams.store.blobs import BlobCache, MissingBlob, chunk_count, join_chunks, join_named, ref_of, split_chunks
from dart_streams.store.objects import BlobObjects, open_objects
from dart_streams.store.schema import retention_s
from dart_streams.store.sessions import DOWN, connect_async, gone_error, is_down, request_policy
from topics.observations import Observation
from topics.trajectories import Trajectory
from topics.values import BlobRef

CONCURRENCY = 128
PATIENCE_S = 5.0
"""An action request may overtake its screenshot, usually by milliseconds."""
FIRST_PAUSE_S = 0.002
LAST_PAUSE_S = 0.25


class Bridge:
    """Passes results from the driver's threads to the event loop; concurrent results wake it once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.loop = asyncio.get_running_loop()
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._waking = False

    def execute(self, statement: PreparedStatement, values: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a statement; return the future of its rows."""
        future = self.loop.create_future()
        response = self.session.execute_async(statement, values)
        response.add_callbacks(
            callback=lambda rows: self._on_result(future, rows, None),
            errback=lambda error: self._on_result(future, None, error),
        )
        return future

    def _on_result(self, future: asyncio.Future[Any], rows: Any, error: BaseException | None) -> None:
        self._ready.append((future, rows, error))
        # A stale True is harmless: the delivery it stands for has yet to empty the queue.
        if not self._waking and not self.loop.is_closed():
            self._waking = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        while self._ready:
            future, rows, error = self._ready.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(rows)
            else:
                future.set_exception(error)


async def open_store(
    config: Config, resources: contextlib.AsyncExitStack, cache_mb: int = Store.blob_cache_mb
) -> "AsyncStore":
    """Return the rows of a configuration's run, connected until ``resources`` are closed."""
    session = await connect_async(config.store)
    resources.callback(session.cluster.shutdown)
    return AsyncStore(session, config.bus.run, cache_mb, config.store.wait_s, open_objects(config.store))


class AsyncStore:
    """Rows of one run. While the database is down, calls are retried for ``wait_s``.

    Every method then raises :class:`~dart_streams.errors.ServiceUnavailable`. Create it inside the event loop.
    """

    def __init__(
        self, session: Session, run: str, cache_mb: int, wait_s: float = 30.0, objects: BlobObjects | None = None
    ) -> None:
        self.session = session
        self.objects = objects
        self.run = run
        self.wait_s = wait_s
        self.cache = BlobCache(cache_mb * 1024 * 1024)
        self._bridge = Bridge(session)
        self._in_flight = asyncio.Semaphore(CONCURRENCY)
        self._prepared: dict[str, PreparedStatement] = {}

    async def put_blob(self, data: bytes, media_type: str, width: int, height: int) -> BlobRef:
        """Write a screenshot; return its reference once it is durable.

        A cached screenshot is written again only if the store has lost it, or if half of its time has passed.
        """
        ref = ref_of(data, media_type, width, height)
        if self.cache.get(ref.sha256) is not None and await self._has(ref):
            return ref
        if self.objects is not None:
            await self.objects.run(self.objects.put, ref.sha256, data)
        else:
            pieces = enumerate(split_chunks(data))
            writes = [self._execute(statements.PUT_CHUNK, (ref.sha256, n, piece)) for n, piece in pieces]
            await asyncio.gather(*writes)
        self.cache.put(ref.sha256, data)
        return ref

    async def _has(self, ref: BlobRef) -> bool:
        """Return whether a screenshot is stored, in a table for half of its time yet."""
        if self.objects is not None:
            return await self.objects.run(self.objects.size, ref.sha256) == ref.size
        stored = await self._execute(statements.HAS_CHUNKS, (ref.sha256,))
        renewed_below_s = retention_s(self.session, self.session.keyspace, "blobs") / 2
        lasting = [left_s for (left_s,) in stored if left_s is None or left_s >= renewed_below_s]
        return len(lasting) == chunk_count(ref.size)

    async def _pieces(self, sha256: str) -> list[bytes]:
        """Return the stored bytes of a screenshot, none if there are none."""
        if self.objects is not None and (data := await self.objects.run(self.objects.get, sha256)) is not None:
            return [data]
        return [row[0] for row in await self._execute(statements.GET_CHUNKS, (sha256,))]

    def forget_blob(self, ref: BlobRef) -> None:
        """Have a screenshot written again at the next put; the stored one may be damaged."""
        self.cache.drop(ref.sha256)

    async def get_blob(self, ref: BlobRef, patience_s: float = PATIENCE_S) -> bytes:
        """Return a screenshot; retry an incomplete one for ``patience_s``, then raise :class:`MissingBlob`."""
        data = self.cache.get(ref.sha256)
        if data is None:
            data = await self._find_blob(ref, patience_s)
            self.cache.put(ref.sha256, data)
        return data

    async def blob_named(self, sha256: str) -> bytes:
        """Return a screenshot by digest; raise :class:`MissingBlob` if it is incomplete or damaged."""
        data = self.cache.get(sha256)
        if data is None:
            data = join_named(sha256, await self._pieces(sha256))
            self.cache.put(sha256, data)
        return data

    async def _find_blob(self, ref: BlobRef, patience_s: float) -> bytes:
        deadline, pause_s = Deadline(patience_s), FIRST_PAUSE_S
        while True:
            pieces = await self._pieces(ref.sha256)
            try:
                return join_chunks(ref, pieces)
            except MissingBlob:
                if pause_s > deadline.remaining_s:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def write_step(self, observation: Observation) -> None:
        """Write an observation; durable on return."""
        await self._execute(statements.PUT_STEP, statements.step_values(self.run, observation))

    async def steps(self, trajectory_id: str) -> list[Observation]:
        """Return a trajectory's observations by step; empty if there are none."""
        rows = await self._execute(statements.GET_STEPS, (self.run, trajectory_id))
        return [statements.observation_of(self.run, trajectory_id, row[0]) for row in rows]

    async def write_trajectory(self, trajectory: Trajectory) -> None:
        """Write a finished trajectory by id and by task; durable on return."""
        text = statements.trajectory_text(trajectory)
        identity, task_id = trajectory.trajectory_id, trajectory.task_id
        by_id, by_task = (self.run, identity, text), (self.run, task_id, trajectory.finished_ms, identity, text)
        if len(text) <= statements.FINISHED_BYTES:
            await self._execute(statements.PUT_FINISHED, (*by_id, *by_task))
            return
        await asyncio.gather(
            self._execute(statements.PUT_TRAJECTORY, by_id), self._execute(statements.PUT_BY_TASK, by_task)
        )

    async def _execute(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        async with self._in_flight:
            try:
                try:
                    return await self._send(query, values)
                except DOWN as error:  # the policy is made for a failure only: it costs more than the call
                    if not is_down(error):
                        raise
                return await AsyncRetrying(**request_policy(self.wait_s))(self._send, query, values)
            except InvalidRequest as error:
                raise gone_error(error, self.run) or error from None

    async def _send(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        statement = self._prepared.get(query)
        if statement is None:
            statement = await asyncio.to_thread(statements.prepare, self.session, query)
            self._prepared[query] = statement
        return await self._bridge.execute(statement, values) or []
