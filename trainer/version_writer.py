"""Writer of weight versions: full weights, a delta to the previous version, or an adapter."""

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
import structlog
from safetensors import SafetensorError
from torch import Tensor

from dart_streams.config.trainer import Publish
from dart_streams.deadline import Deadline
from dart_streams.errors import UserError
from dart_streams.file_storage import StorageUnreachable
from dart_streams.policy import adapters, deltas
from dart_streams.policy import weights as weight_files
from dart_streams.policy.adapters import Adapter
from dart_streams.policy.probe import Probe
from topics.weights import WeightPart, WeightVersion

BASE = "-base"
"""Suffix of the directory of an adapter's base."""
STORE_TIMEOUT_S = 300.0
"""Maximum outage of the weight store, well within the ranks' collective timeout."""
RETRY_INTERVAL_S = 5.0

Written = TypeVar("Written")

log = structlog.get_logger()


class VersionNotWritten(UserError):
    """Weights could not be written to their URI; a resumed trainer publishes them."""

    exit_code = 1


class WrittenVersion(NamedTuple):
    """Durable files of a version; ``changed_share`` of its values differ from the last version (None: unknown)."""

    own: WeightPart
    base: list[WeightPart]
    size_bytes: int
    changed_share: float | None

    def metrics(self) -> dict[str, float]:
        """Return the publishing metrics of a step."""
        share = {} if self.changed_share is None else {"weights_changed_share": self.changed_share}
        return {"publish_bytes": float(self.size_bytes), **share}


class VersionWriter:
    """Writes versions in order; keeps the newest tensors for deltas, or the newest adapter and its base."""

    def __init__(self, settings: Publish) -> None:
        self.full_every = settings.full_every
        self.tensors: Mapping[str, Tensor] = {}
        self.parts: list[WeightPart] = []
        self.adapter: Adapter | None = None
        self.base: WeightPart | None = None

    def adopt_base(self, newest: WeightVersion, adapter: Adapter) -> None:
        """Use the base of the ``newest`` version if it is the adapter's."""
        full = newest.parts[0]
        if full.sha256 == weight_files.digest_tensors(adapter.base):
            self.base = full

    def resume(
        self, newest: WeightVersion, tensors: Mapping[str, Tensor], adapter: Adapter | None = None
    ) -> WeightVersion:
        """Continue after the ``newest`` version, which has these ``tensors``; return it, written whole if needed."""
        tensors = weight_files.distinct_tensors(tensors)
        self.adapter = adapter
        if adapter is not None and self.base is not None and newest.kind in ("adapter", "full"):
            return newest
        if newest.kind != "full":
            return self.write_whole(newest, tensors)
        self._keep(tensors, newest.parts)
        return newest

    def write(
        self,
        uri: str,
        version: int,
        tensors: Mapping[str, Tensor],
        probe: Probe,
        adapter: Adapter | None = None,
        *,
        whole: bool = False,
    ) -> WrittenVersion:
        """Write ``version`` to directory ``uri``: full if ``whole`` or due, otherwise the ``adapter`` or a delta."""
        beside = {weight_files.PROBE: msgspec.json.encode(probe)}
        tensors = weight_files.distinct_tensors(tensors)
        if adapter is not None:
            return self._write_adapter(uri, version, tensors, beside, adapter, whole)
        size = size_of(tensors)
        delta = deltas.diff_weights(self.tensors, tensors)
        share = delta.changed / max(1, delta.elements) if delta else None
        if delta is None or whole or len(self.parts) >= self.full_every or size_of(delta.tensors) >= size:
            sha256 = weight_files.save(tensors, uri, beside)
            base, own = [], WeightPart(version=version, uri=uri, sha256=sha256)
        else:
            size = size_of(delta.tensors)
            file_sha256 = weight_files.save(delta.tensors, uri, beside, "delta")
            base, sha256 = self.parts, weight_files.digest_tensors(tensors)
            own = WeightPart(version=version, uri=uri, sha256=sha256, kind="delta", file_sha256=file_sha256)
        self._keep(tensors, [*base, own])
        return WrittenVersion(own, base, size, share)

    def _write_adapter(
        self,
        uri: str,
        version: int,
        tensors: Mapping[str, Tensor],
        beside: Mapping[str, bytes],
        adapter: Adapter,
        whole: bool,
    ) -> WrittenVersion:
        """Write an adapter, and its base if there is none; whole weights equal to the base become the base."""
        self.adapter = adapter
        sha256 = weight_files.digest_tensors(tensors)
        is_base = self.base is None and sha256 == weight_files.digest_tensors(adapter.base)
        if whole or is_base:
            own = WeightPart(version=version, uri=uri, sha256=weight_files.save(tensors, uri, beside))
            self.base = own if is_base else None
            return WrittenVersion(own, [], size_of(tensors), None)
        if self.base is None:
            place = uri + BASE
            # Frozen weights are those of version 0, whatever the version they are written for.
            self.base = WeightPart(version=0, uri=place, sha256=weight_files.save(adapter.base, place))
        files = {**beside, weight_files.ADAPTER_CONFIG: adapter.config}
        file_sha256 = weight_files.save(adapter.tensors, uri, files, "adapter", adapter.metadata)
        own = WeightPart(version=version, uri=uri, sha256=sha256, kind="adapter", file_sha256=file_sha256)
        return WrittenVersion(own, [self.base], size_of(adapter.tensors), None)

    def newest_tensors(self) -> Mapping[str, Tensor]:
        """Return all weights of the newest version; empty if none are kept."""
        if self.adapter is None:
            return self.tensors
        return adapters.with_adapter(self.adapter.base, self.adapter.tensors, self.adapter.scaling)

    def write_whole(self, newest: WeightVersion, tensors: Mapping[str, Tensor]) -> WeightVersion:
        """Write all ``tensors`` of the newest version beside its delta; return it as a full version."""
        sha256 = weight_files.save(tensors, newest.uri)
        full = msgspec.structs.replace(newest, sha256=sha256, kind="full", file_sha256="", base=[])
        self._keep(tensors, full.parts)
        self.base = None
        return full

    def _keep(self, tensors: Mapping[str, Tensor], parts: list[WeightPart]) -> None:
        if self.full_every > 1:
            self.tensors, self.parts = tensors, parts


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of tensors in bytes."""
    return sum(tensor.nbytes for tensor in tensors.values())


def write_patiently(write: Callable[[], Written], version: int, uri: str, stop: threading.Event) -> Written:
    """Return the result of ``write``, retried while the store is unreachable; raise VersionNotWritten on failure."""
    deadline = Deadline(STORE_TIMEOUT_S)
    while True:
        try:
            return write()
        except StorageUnreachable as error:
            if deadline.expired or stop.is_set():
                raise VersionNotWritten(
                    f"weight version {version} can't be written: {error}. A restarted trainer publishes these weights "
                    "once the store is back"
                ) from error
            left_s = round(deadline.remaining_s)
            log.warning("waiting for the weight store", version=version, reason=str(error), left_s=left_s)
            stop.wait(RETRY_INTERVAL_S)
        except (OSError, SafetensorError) as error:
            raise VersionNotWritten(
                f"weight version {version} can't be written to {uri} ({error}): check that it exists, is writable and "
                "has room. A restarted trainer publishes these weights"
            ) from error
