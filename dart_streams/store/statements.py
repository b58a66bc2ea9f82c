"""The store's queries, prepared once a session. All but the claim of an epoch are idempotent."""

from typing import Any

import msgspec
from cassandra.cluster import Session
from cassandra.query import PreparedStatement

from dart_streams.config.text import MALFORMED
from dart_streams.errors import UserError
from topics.observations import Observation
from topics.trajectories import Trajectory

PUT_CHUNK = "INSERT INTO blobs (sha256, chunk, data) VALUES (?, ?, ?)"
GET_CHUNKS = "SELECT data FROM blobs WHERE sha256 = ?"
HAS_CHUNKS = "SELECT TTL(data) FROM blobs WHERE sha256 = ?"
"""A row a chunk, with the seconds until it expires; null: never."""
PUT_STEP = "INSERT INTO steps (run, trajectory_id, step, observation) VALUES (?, ?, ?, ?)"
GET_STEPS = "SELECT observation FROM steps WHERE run = ? AND trajectory_id = ?"
PUT_TRAJECTORY = "INSERT INTO trajectories (run, id, trajectory) VALUES (?, ?, ?)"
PUT_BY_TASK = "INSERT INTO trajectories_by_task (run, task_id, finished_at, id, trajectory) VALUES (?, ?, ?, ?, ?)"
PUT_FINISHED = f"BEGIN UNLOGGED BATCH {PUT_TRAJECTORY}; {PUT_BY_TASK}; APPLY BATCH"
"""Both rows of a trajectory in one request; no more atomic than two requests."""
FINISHED_BYTES = 2048
"""Maximum trajectory for :data:`PUT_FINISHED`: Cassandra warns of batches of 5 KiB and refuses 50 KiB."""
TRAINED_COLUMNS = ("train_step", "version", "epoch", "group_ids", "trajectory_ids", "metrics", "at_ms")
PUT_TRAINED = f"INSERT INTO trained (run, {', '.join(TRAINED_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
CLAIMS_STEP = -1
"""Row of ``trained`` that is no step: its ``metrics`` has the newest claimed epoch of each model."""
GET_CLAIMS = f"SELECT metrics FROM trained WHERE run = ? AND train_step = {CLAIMS_STEP}"
CLAIM = f"UPDATE trained SET metrics[?] = ? WHERE run = ? AND train_step = {CLAIMS_STEP} IF metrics[?]"
CLAIM_FIRST, CLAIM_NEXT, CLAIM_HELD = f"{CLAIM} = null", f"{CLAIM} < ?", f"{CLAIM} = ?"
PUT_TRAINED_BY_CLAIM = f"BEGIN BATCH {CLAIM_HELD}; {PUT_TRAINED}; APPLY BATCH"
"""A lightweight transaction on one partition: the step's row is written only while its trainer's claim holds."""

_encoder = msgspec.json.Encoder()
_observations = msgspec.json.Decoder(Observation)


class DamagedRow(UserError):
    """A row that was torn, or changed by another program."""


def observation_of(run: str, trajectory_id: str, text: str) -> Observation:
    """Decode a row of ``steps``; raise :class:`DamagedRow`, with the remedy, if it is invalid."""
    try:
        return _observations.decode(text)
    except MALFORMED as error:
        raise DamagedRow(
            f"the store's row of a step of trajectory {trajectory_id} of run {run} is damaged ({error}): "
            f"the log has it whole, `dart-streams store rebuild --run {run}` writes it again"
        ) from None


def prepare(session: Session, query: str) -> PreparedStatement:
    """Prepare an idempotent query whose result is one page."""
    statement = session.prepare(query)
    statement.is_idempotent = True
    statement.fetch_size = None
    return statement


def step_values(run: str, observation: Observation) -> tuple[Any, ...]:
    """Return the values of :data:`PUT_STEP`."""
    return run, observation.trajectory_id, observation.step, _encoder.encode(observation).decode()


def trajectory_text(trajectory: Trajectory) -> str:
    """Return the encoded column of a trajectory."""
    return _encoder.encode(trajectory).decode()
